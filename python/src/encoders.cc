// Published encoders: vectors, labels and tokens of texts. python/qkv/_models.py gives the results
// their form.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "bindings.h"
#include "models/text_model.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

using Texts = std::vector<std::string>;

std::vector<TextTokens> tokens_of(const TextModel& model, const Texts& texts, const Texts& pairs,
                                  bool truncate) {
  std::vector<TextTokens> all(texts.size());
  parallel_for(static_cast<std::int64_t>(texts.size()), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    all[at] = pairs.empty() ? model.tokens(texts[at], truncate)
                            : model.tokens(texts[at], pairs[at], truncate);
  });
  return all;
}

std::int64_t count_cut(const std::vector<TextTokens>& texts) {
  return std::count_if(texts.begin(), texts.end(), [](const TextTokens& t) { return t.cut; });
}

// (vectors [texts, C], texts that were cut)
nb::object embed(const TextModel& model, const Texts& texts, bool truncate) {
  Tensor vectors;
  std::int64_t cut = 0;
  {
    const nb::gil_scoped_release no_gil;
    const std::vector<TextTokens> tokens = tokens_of(model, texts, {}, truncate);
    cut = count_cut(tokens);
    vectors =
        tokens.empty() ? Tensor::empty({0, model.model().config().d_model}) : model.embed(tokens);
  }
  return nb::make_tuple(export_numpy(vectors), cut);
}

// (logits [texts, labels], texts that were cut); pairs: empty, or the second text of each.
nb::object label_logits(const TextModel& model, const Texts& texts, const Texts& pairs,
                        bool truncate) {
  const HeadConfig& head = model.model().config().head;
  require<UnsupportedError>(head.kind == HeadKind::kSequence, "classify",
                            "expected a model with a head for whole texts, got one with the head "
                            "{}",
                            head_kind_name(head.kind));
  Tensor all = Tensor::zeros({static_cast<std::int64_t>(texts.size()), head.num_labels()});
  std::int64_t cut = 0;
  {
    const nb::gil_scoped_release no_gil;
    const std::vector<TextTokens> tokens = tokens_of(model, texts, pairs, truncate);
    cut = count_cut(tokens);
    model.each_logits(tokens, [&](std::size_t i, const Tensor& logits) {
      all.narrow(0, static_cast<std::int64_t>(i), 1).copy_from(logits);
    });
  }
  return nb::make_tuple(export_numpy(all), cut);
}

// (ids of the text, places of the mask token, logits [places, V])
nb::object mask_logits(const TextModel& model, const std::string& text, bool truncate) {
  const HeadConfig& head = model.model().config().head;
  require<UnsupportedError>(head.kind == HeadKind::kMaskedLm, "fill",
                            "expected a masked language model, got one with the head {}",
                            head_kind_name(head.kind));
  const std::optional<std::int32_t> mask = model.tokenizer().special_id("mask");
  require<ModelError>(mask.has_value(), "fill", "expected a tokenizer with a mask token, got {}",
                      "one without");
  std::vector<std::vector<std::int64_t>> places(1);
  Tensor scores;
  std::vector<TextTokens> tokens;
  {
    const nb::gil_scoped_release no_gil;
    tokens = tokens_of(model, {text}, {}, truncate);
    for (std::size_t t = 0; t < tokens[0].ids.size(); ++t)
      if (tokens[0].ids[t] == *mask) places[0].push_back(static_cast<std::int64_t>(t));
    require<DataError>(!places[0].empty(), "fill", "expected a text with {}, got \"{}\"",
                       model.tokenizer().token(*mask), text);
    model.each_logits(
        tokens, [&](std::size_t, const Tensor& logits) { scores = logits.clone(); }, places);
  }
  return nb::make_tuple(tokens[0].ids, places[0], export_numpy(scores));
}

}  // namespace

void bind_encoders(nb::module_& m) {
  nb::class_<TextModel>(m, "_Encoder")
      .def_static(
          "load",
          [](const std::filesystem::path& folder, bool for_vectors) {
            const nb::gil_scoped_release no_gil;
            return TextModel::load(folder,
                                   for_vectors ? std::optional(HeadKind::kNone) : std::nullopt);
          },
          nb::arg("folder"), nb::arg("for_vectors"))
      .def_prop_ro("tokenizer", [](const TextModel& t) { return t.tokenizer(); })
      .def_prop_ro("max_length", &TextModel::max_length)
      .def_prop_ro("head",
                   [](const TextModel& t) {
                     return std::string(head_kind_name(t.model().config().head.kind));
                   })
      .def_prop_ro("labels", [](const TextModel& t) { return t.model().config().head.labels; })
      .def_prop_ro("prompts", [](const TextModel& t) { return t.settings().prompts; })
      .def_prop_ro("default_prompt", [](const TextModel& t) { return t.settings().default_prompt; })
      .def("embed", &embed, nb::arg("texts"), nb::arg("truncate"))
      .def("label_logits", &label_logits, nb::arg("texts"), nb::arg("pairs"), nb::arg("truncate"))
      .def("mask_logits", &mask_logits, nb::arg("text"), nb::arg("truncate"));
}

}  // namespace qkv::python
