// qkv convert: other layouts and dtypes to a Hugging Face folder.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "qkv/error.h"

#include "base/check.h"
#include "models/convert.h"
#include "terminal.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

struct ConvertArguments {
  std::string in, out, dtype, tokenizer;
};

std::optional<DType> parse_dtype(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "float32" || name == "fp32") return DType::kFloat32;
  if (name == "bfloat16" || name == "bf16") return DType::kBFloat16;
  if (name == "float16" || name == "fp16") return DType::kFloat16;
  fail<ArgumentError>("arguments", "expected --dtype float32, bfloat16 or float16, got '{}'", name);
}

int run_convert(const ConvertArguments& arguments, const Globals& globals) {
  ConvertOptions options;
  options.dtype = parse_dtype(arguments.dtype);
  options.tokenizer = arguments.tokenizer;
  note_signals();
  ProgressLine progress(globals.verbosity);
  options.progress = [&](std::int64_t done, std::int64_t all) {
    if (noted_signal() != 0)
      throw ErrorOf<ErrorCode::kInterrupted>(
          "convert", "expected to be left alone, got a signal; nothing was written");
    if (progress.due()) progress.update(fmt::format("{} of {} tensors", done, all));
  };
  const ConvertResult result = convert_model(arguments.in, arguments.out, options);
  progress.clear();
  if (globals.json) {
    Json out = Json::object();
    out["out"] = arguments.out;
    out["tensors"] = result.tensors;
    out["bytes"] = result.bytes;
    print_json(out);
  } else {
    print_line(fmt::format("{}: {} tensors, {:.1f} MB", arguments.out, result.tensors,
                           static_cast<double>(result.bytes) / 1e6));
  }
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, Globals& globals) {
  auto arguments = std::make_shared<ConvertArguments>();
  CLI::App* verb =
      app.add_subcommand("convert", "other layouts and dtypes to a Hugging Face folder");
  verb->add_option("IN", arguments->in,
                   "a .gguf file, a .bin file of llama2.c, or a Hugging Face folder")
      ->required();
  verb->add_option("OUT", arguments->out, "the new folder")->required();
  verb->add_option("--dtype", arguments->dtype,
                   "float32, bfloat16 or float16 (default: as stored; quantised: float32)");
  verb->add_option("--tokenizer", arguments->tokenizer,
                   "llama2.c: the tokenizer.bin, where it is not beside IN");
  verb->footer(
      "Examples:\n  qkv convert model.gguf folder --dtype bfloat16\n"
      "  qkv convert stories260K.bin folder --tokenizer tok512.bin");
  verb->callback([arguments, &globals] {
    globals.run = [arguments, &globals] { return run_convert(*arguments, globals); };
  });
}

}  // namespace qkv::inline v0
