// Trained models, training, the lab, and what the machine is. Structured results cross as JSON;
// qkv/_api.py gives them their form.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "qkv/threads.h"

#include "arrays.h"
#include "base/check.h"
#include "bench/machine.h"
#include "bench/probe.h"
#include "bindings.h"
#include "inspect/trace.h"
#include "lab/lab.h"
#include "train/config.h"
#include "train/package.h"
#include "train/trainer.h"

namespace nb = nanobind;

namespace qkv::python {
namespace {

using Package = train::ClassifierPackage;

// Probabilities [texts, labels].
nb::object predict(const Package& package, const std::vector<std::string>& texts, bool truncate) {
  Tensor scores;
  {
    const nb::gil_scoped_release no_gil;
    std::vector<TextRow> rows;
    for (const std::string& text : texts)
      rows.push_back({text, "", static_cast<std::int64_t>(rows.size()) + 1});
    const auto labels = static_cast<std::int64_t>(package.model.config().labels.size());
    scores = Tensor::empty({static_cast<std::int64_t>(texts.size()), labels}, DType::kFloat64);
    if (!rows.empty()) {
      const auto answers = train::classify_texts(package, rows, truncate, "text");
      double* to = scores.data<double>();
      for (const std::vector<double>& row : answers.scores)
        to = std::copy(row.begin(), row.end(), to);
    }
  }
  return export_numpy(scores);
}

// (tokens, words, label, score, [weights of each layer], figures as JSON)
nb::object attention_of(const Package& package, const std::string& text) {
  inspect::Trace trace;
  std::string figures;
  {
    const nb::gil_scoped_release no_gil;
    trace = inspect::trace_text(package.model, package.tokenizer.encode(text), text,
                                {.attention = true, .activations = false});
    Json list = Json::array();
    for (const inspect::HeadFigures& head : inspect::all_figures(trace))
      list.push_back(head.to_json());
    figures = list.dump();
  }
  nb::list layers;
  for (const auto& [module, weights] : trace.attention) layers.append(export_numpy(weights));
  return nb::make_tuple(trace.tokens, trace.words, trace.label, trace.score, layers, figures);
}

std::string outcome_json(const train::TrainOutcome& o) {
  Json out = Json::object();
  out["step"] = o.step;
  out["best_step"] = o.best_step;
  out["epochs"] = o.epochs;
  out["loss"] = o.loss;
  out["metric"] = o.metric;
  out["value"] = o.value;
  out["test_accuracy"] = o.test_accuracy ? Json(*o.test_accuracy) : Json();
  out["test_macro_f1"] = o.test_macro_f1 ? Json(*o.test_macro_f1) : Json();
  out["seconds"] = o.seconds;
  out["tokens_per_second"] = o.tokens_per_second;
  out["peak_bytes"] = o.peak_bytes;
  return out.dump();
}

// Calls Python's `progress` and looks for signals between steps. What they raise ends the run after
// it has saved, and is raised then.
struct StepCallback {
  nb::object progress;
  std::exception_ptr raised;

  void step(const train::Progress& p) {
    if (progress.is_none() || raised) return;
    const nb::gil_scoped_acquire gil;
    try {
      nb::dict state;
      state["step"] = p.step;
      state["total_steps"] = p.total_steps;
      state["epoch"] = p.epoch;
      state["loss"] = p.loss;
      state["tokens_per_second"] = p.tokens_per_second;
      state["seconds_left"] = p.seconds_left;
      progress(state);
    } catch (...) {
      raised = std::current_exception();
    }
  }
  bool stop() {
    if (raised) return true;
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) return false;
    raised = std::make_exception_ptr(nb::python_error());
    return true;
  }
};

struct TrainCall {
  std::optional<std::filesystem::path> file;
  std::string toml;
  std::filesystem::path out;
  std::vector<std::string> overrides;
  bool resume = false;
};

std::string run_training(const TrainCall& call, nb::object progress) {
  StepCallback callback{std::move(progress), nullptr};
  std::string outcome;
  {
    const nb::gil_scoped_release no_gil;
    const train::TrainConfig config =
        call.file
            ? train::read_train_config(*call.file, call.overrides)
            : train::parse_train_config(call.toml, std::filesystem::current_path(), call.overrides);
    train::TrainHooks hooks;
    hooks.progress = [&](const train::Progress& p) { callback.step(p); };
    hooks.stop = [&](std::int64_t) { return callback.stop(); };
    hooks.peak_flops = [] { return bench::MultiplyAddProbe().best(); };
    outcome = outcome_json(train::train_classifier(config, call.out, call.resume, hooks));
  }
  if (callback.raised) std::rethrow_exception(callback.raised);
  return outcome;
}

// (JSON of name, claim, holds, verdict, measured; columns; rows; {file: bytes}; text)
nb::object run_experiment(const std::string& name, bool full, std::uint64_t seed,
                          const std::filesystem::path& data, const std::filesystem::path& model) {
  lab::Options options;
  options.full = full;
  options.seed = seed;
  options.data = data;
  options.model = model;
  const lab::Experiment& experiment = lab::find_experiment(name);
  lab::Result result;
  {
    const nb::gil_scoped_release no_gil;
    result = experiment.run(options);
  }
  nb::dict pictures;
  for (const lab::Picture& picture : result.pictures)
    pictures[picture.file.c_str()] = nb::bytes(picture.bytes.data(), picture.bytes.size());
  return nb::make_tuple(lab::to_json(experiment, result).dump(), result.table.columns,
                        result.table.rows, pictures, lab::to_text(experiment, result));
}

nb::list list_experiments() {
  nb::list all;
  for (const lab::Experiment& e : lab::experiments()) all.append(nb::make_tuple(e.name, e.claim));
  return all;
}

std::string machine_json(bool measure) { return bench::describe_machine(measure).dump(); }

}  // namespace

void bind_models(nb::module_& m) {
  nb::class_<Package>(m, "_Classifier")
      .def_static("load", &train::load_classifier, nb::arg("folder"),
                  nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("labels", [](const Package& p) { return p.model.config().labels; })
      .def_prop_ro("tokenizer", [](const Package& p) { return p.tokenizer; })
      .def("predict", &predict, nb::arg("texts"), nb::arg("truncate"))
      .def("attention", &attention_of, nb::arg("text"));
  m.def(
      "_train",
      [](std::optional<std::filesystem::path> file, const std::string& toml,
         const std::filesystem::path& out, const std::vector<std::string>& overrides, bool resume,
         nb::object progress) {
        return run_training({std::move(file), toml, out, overrides, resume}, std::move(progress));
      },
      nb::arg("file").none(), nb::arg("toml"), nb::arg("out"), nb::arg("overrides"),
      nb::arg("resume"), nb::arg("progress").none());
  m.def("_lab_run", &run_experiment, nb::arg("name"), nb::arg("full"), nb::arg("seed"),
        nb::arg("data"), nb::arg("model"));
  m.def("_lab_list", &list_experiments);
  m.def("_info", &machine_json, nb::arg("measure"), nb::call_guard<nb::gil_scoped_release>());
  m.def("num_threads", &num_threads, "Threads that a call may use.");
  m.def("set_num_threads", &set_num_threads, nb::arg("n"),
        "Sets the threads of the process, 1 to 1024; not while another thread computes.");
  m.def("num_threads_reason", &num_threads_reason, "Why num_threads() is what it is.");
}

}  // namespace qkv::python
