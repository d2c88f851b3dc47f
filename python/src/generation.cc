// Language models: continuations and log-probabilities of texts. python/qkv/_models.py gives them
// their form.
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "base/check.h"
#include "bindings.h"
#include "infer/beam_search.h"
#include "infer/generate.h"
#include "infer/package.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

using Package = infer::LanguagePackage;

// The keywords of Model.generate, all of them given.
struct Settings {
  nb::dict values;
  template <class T>
  T get(const char* name) const {
    return nb::cast<T>(values[name]);
  }
};

infer::SamplingOptions sampling_of(const Settings& s) {
  infer::SamplingOptions o;
  o.temperature = s.get<double>("temperature");
  o.top_k = s.get<std::int64_t>("top_k");
  o.top_p = s.get<double>("top_p");
  o.min_p = s.get<double>("min_p");
  o.repetition_penalty = s.get<double>("repetition_penalty");
  o.presence_penalty = s.get<double>("presence_penalty");
  o.frequency_penalty = s.get<double>("frequency_penalty");
  o.logit_bias = s.get<std::vector<std::pair<std::int32_t, double>>>("logit_bias");
  o.banned = s.get<std::vector<std::int32_t>>("banned");
  return o;
}

infer::GenerateOptions options_of(const Settings& s) {
  infer::GenerateOptions o;
  o.max_new_tokens = s.get<std::int64_t>("max_new_tokens");
  o.min_new_tokens = s.get<std::int64_t>("min_new_tokens");
  o.sampling = sampling_of(s);
  o.seed = s.get<std::uint64_t>("seed");
  o.stop = s.get<std::vector<std::string>>("stop");
  o.ignore_end = s.get<bool>("ignore_end");
  o.logprobs = s.get<bool>("logprobs");
  o.max_streams = s.get<std::int64_t>("batch_size");
  return o;
}

std::vector<std::int32_t> ids_of(const Package& package, const std::string& text) {
  return package.tokenizer.encode(text).ids;
}

std::vector<std::string> pieces_of(const Package& package, const std::vector<std::int32_t>& ids) {
  std::vector<std::string> pieces;
  for (const std::int32_t id : ids) pieces.push_back(infer::piece_of(package.tokenizer, id));
  return pieces;
}

nb::object export_generated(const Package& package, const infer::Generated& g) {
  return nb::make_tuple(g.text, g.ids, pieces_of(package, g.ids), g.logprobs,
                        std::string(infer::finish_reason_name(g.finish)));
}

// Calls Python's on_text(index, text) and looks for signals. What they raise ends all continuations
// and is raised then.
struct TextCallback {
  nb::object on_text;
  std::exception_ptr raised;

  bool operator()(std::size_t index, std::string_view text) {
    if (raised) return false;
    const nb::gil_scoped_acquire gil;
    try {
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
      if (on_text.is_none()) return true;
      const nb::object answer = on_text(index, text);
      return answer.is_none() || nb::cast<bool>(nb::bool_(answer));
    } catch (...) {
      raised = std::current_exception();
      return false;
    }
  }
};

nb::list generate(const Package& package, const std::vector<std::string>& prompts,
                  const nb::dict& settings, nb::object on_text) {
  const infer::GenerateOptions options = options_of({settings});
  TextCallback callback{std::move(on_text), nullptr};
  std::vector<infer::Generated> results;
  {
    const nb::gil_scoped_release no_gil;
    std::vector<std::vector<std::int32_t>> ids;
    for (const std::string& prompt : prompts) ids.push_back(ids_of(package, prompt));
    infer::GenerateHooks hooks;
    hooks.bytes = infer::token_bytes(package.tokenizer);
    hooks.on_text = [&](std::size_t index, std::string_view text) { return callback(index, text); };
    results = infer::generate(*package.model, ids, options, hooks);
  }
  if (callback.raised) std::rethrow_exception(callback.raised);
  nb::list all;
  for (const infer::Generated& result : results) all.append(export_generated(package, result));
  return all;
}

// [(text, ids, pieces, logprobs, score, ended)] of one prompt, best first.
nb::list beam_search(const Package& package, const std::string& prompt, const nb::dict& values) {
  const Settings settings{values};
  infer::BeamOptions options;
  options.beams = settings.get<std::int64_t>("num_beams");
  options.results = settings.get<std::int64_t>("num_return_sequences");
  options.length_penalty = settings.get<double>("length_penalty");
  options.max_new_tokens = settings.get<std::int64_t>("max_new_tokens");
  options.min_new_tokens = settings.get<std::int64_t>("min_new_tokens");
  options.sampling = sampling_of(settings);
  std::vector<infer::Hypothesis> found;
  {
    const nb::gil_scoped_release no_gil;
    found = infer::beam_search(*package.model, ids_of(package, prompt), options);
  }
  nb::list all;
  for (const infer::Hypothesis& h : found)
    all.append(nb::make_tuple(package.tokenizer.decode(h.ids), h.ids, pieces_of(package, h.ids),
                              h.logprobs, h.score, h.ended));
  return all;
}

nb::object export_score(const Package& package, const std::vector<std::int32_t>& ids,
                        const infer::Score& score) {
  std::vector<double> logprobs;
  nb::list greedy;
  for (const infer::TokenScore& token : score.tokens) {
    logprobs.push_back(token.logprob);
    greedy.append(token.is_greedy);
  }
  return nb::make_tuple(ids, pieces_of(package, ids), logprobs, greedy, score.perplexity());
}

nb::object score(const Package& package, const std::string& text, std::int64_t window,
                 std::int64_t stride) {
  infer::ScoreOptions options;
  options.window = window;
  options.stride = stride;
  std::vector<std::int32_t> ids;
  infer::Score result;
  {
    const nb::gil_scoped_release no_gil;
    ids = ids_of(package, text);
    result = infer::score(*package.model, ids, options);
  }
  return export_score(package, ids, result);
}

nb::object score_continuation(const Package& package, const std::string& context,
                              const std::string& continuation) {
  infer::DividedText divided;
  infer::Score result;
  {
    const nb::gil_scoped_release no_gil;
    divided = infer::divide_text(package.tokenizer, context, continuation);
    result = infer::score_continuation(*package.model, divided.context, divided.continuation);
  }
  return export_score(package, divided.continuation, result);
}

}  // namespace

void bind_generation(nb::module_& m) {
  nb::class_<Package>(m, "_LanguageModel")
      .def_static("load", &infer::load_language_package, nb::arg("path"), nb::arg("tokenizer"),
                  nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("tokenizer", [](const Package& p) { return p.tokenizer; })
      .def_prop_ro("context", [](const Package& p) { return p.model->facts().context.value_or(0); })
      .def("generate", &generate, nb::arg("prompts"), nb::arg("settings"),
           nb::arg("on_text").none())
      .def("beam_search", &beam_search, nb::arg("prompt"), nb::arg("settings"))
      .def("score", &score, nb::arg("text"), nb::arg("window"), nb::arg("stride"))
      .def("score_continuation", &score_continuation, nb::arg("context"), nb::arg("continuation"));
}

}  // namespace qkv::python
