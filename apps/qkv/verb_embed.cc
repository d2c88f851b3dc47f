// qkv embed: one vector per text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "models/text_model.h"
#include "terminal.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

constexpr std::size_t kBatch = 1024;  // texts at a time, when that many are waiting

struct EmbedOptions {
  std::string model, prompt;
  std::vector<std::string> texts;
  bool truncate = false;
  std::int64_t chunk = 0, overlap = 0;
};

// One input with its windows; several only with --chunk.
struct Document {
  std::string text;
  std::int64_t number = 0;
  std::vector<TextTokens> windows;
  std::exception_ptr error;
};

std::vector<Document> next_documents(ItemReader& items) {
  std::vector<Document> documents;
  std::string text;
  while (documents.size() < kBatch && items.next(text)) {
    documents.push_back({text, items.number(), {}, nullptr});
    if (!items.waiting()) break;  // answer what is there before waiting for more
  }
  return documents;
}

void tokenize(const TextModel& model, const EmbedOptions& options, const std::string& prompt,
              std::vector<Document>& documents) {
  parallel_for(static_cast<std::int64_t>(documents.size()), [&](std::int64_t i) {
    Document& document = documents[static_cast<std::size_t>(i)];
    try {
      const std::string text = prompt + document.text;
      if (options.chunk > 0) {
        document.windows = model.windows(text, options.chunk, options.overlap);
      } else {
        document.windows.push_back(model.tokens(text, options.truncate));
      }
    } catch (const Error&) {
      document.error = std::current_exception();
    }
  });
}

std::string numbers(const float* values, std::int64_t n, const char* between) {
  fmt::memory_buffer out;
  for (std::int64_t i = 0; i < n; ++i) {
    if (i > 0) fmt::format_to(std::back_inserter(out), "{}", between);
    fmt::format_to(std::back_inserter(out), "{}", values[i]);
  }
  return fmt::to_string(out);
}

// The vector of a document in windows: their mean by tokens, normalised where the model does that.
std::vector<float> mean_of(const std::vector<TextTokens>& windows, const Tensor& vectors,
                           bool normalize) {
  const std::int64_t width = vectors.dim(1);
  std::vector<double> sum(static_cast<std::size_t>(width), 0);
  double tokens = 0, square = 0;
  for (std::size_t w = 0; w < windows.size(); ++w) {
    const float* row = vectors.data<float>() + static_cast<std::int64_t>(w) * width;
    const auto weight = static_cast<double>(windows[w].ids.size());
    tokens += weight;
    for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += weight * static_cast<double>(row[c]);
  }
  for (double& value : sum) {
    value /= tokens;
    square += value * value;
  }
  const double scale = normalize ? 1 / std::max(std::sqrt(square), 1e-12) : 1;
  std::vector<float> mean;
  for (const double value : sum) mean.push_back(static_cast<float>(value * scale));
  return mean;
}

// Characters of the text that a window covers.
std::pair<std::int64_t, std::int64_t> span_of(const TextTokens& window) {
  std::int64_t start = -1, end = 0;
  for (const auto& [from, to] : window.offsets) {
    if (to == 0) continue;  // an added special token
    if (start < 0) start = from;
    end = std::max(end, to);
  }
  return {std::max<std::int64_t>(start, 0), end};
}

std::string chunks_json(const std::vector<TextTokens>& windows, const Tensor& vectors) {
  std::string all;
  for (std::size_t w = 0; w < windows.size(); ++w) {
    const auto [start, end] = span_of(windows[w]);
    all += fmt::format(
        "{}{{\"start\":{},\"end\":{},\"embedding\":[{}]}}", w > 0 ? "," : "", start, end,
        numbers(vectors.data<float>() + static_cast<std::int64_t>(w) * vectors.dim(1),
                vectors.dim(1), ","));
  }
  return all;
}

void print_document(const Document& document, const Tensor& vectors, const EmbedOptions& options,
                    bool normalize, bool json) {
  const bool chunked = options.chunk > 0;
  std::vector<float> values(vectors.data<float>(), vectors.data<float>() + vectors.dim(1));
  if (chunked && document.windows.size() > 1)
    values = mean_of(document.windows, vectors, normalize);
  const auto width = static_cast<std::int64_t>(values.size());
  if (!json) return print_line(numbers(values.data(), width, " "));
  std::string line = fmt::format("{{\"text\":{},\"embedding\":[{}]", Json(document.text).dump(),
                                 numbers(values.data(), width, ","));
  if (chunked) line += fmt::format(",\"chunks\":[{}]", chunks_json(document.windows, vectors));
  print_line(line + "}");
}

// Prints the vectors of the documents in front of the first bad one, and then throws its error.
void answer(const TextModel& model, const std::vector<Document>& documents,
            const EmbedOptions& options, const Globals& globals, const char* source) {
  std::vector<TextTokens> texts;
  std::size_t good = 0;
  for (; good < documents.size() && !documents[good].error; ++good)
    texts.insert(texts.end(), documents[good].windows.begin(), documents[good].windows.end());
  if (!texts.empty()) {
    const Tensor vectors = model.embed(texts);
    std::int64_t row = 0;
    for (std::size_t i = 0; i < good; ++i) {
      const auto n = static_cast<std::int64_t>(documents[i].windows.size());
      print_document(documents[i], vectors.narrow(0, row, n), options, model.settings().normalize,
                     globals.json);
      row += n;
    }
  }
  if (good == documents.size()) return;
  try {
    std::rethrow_exception(documents[good].error);
  } catch (const DataError& error) {
    fail<DataError>("embed", "{}:{}: {}", source, documents[good].number, error_reason(error));
  }
}

int run_embed(const EmbedOptions& options, const Globals& globals) {
  require<ArgumentError>(options.chunk >= 0 && options.overlap >= 0, "arguments",
                         "expected --chunk and --overlap of at least 0, got {} and {}",
                         options.chunk, options.overlap);
  require<ArgumentError>(options.overlap == 0 || options.overlap < options.chunk, "arguments",
                         "expected --overlap below --chunk {}, got {}", options.chunk,
                         options.overlap);
  ItemReader items(options.texts, "embed");
  const TextModel model = TextModel::load(options.model, HeadKind::kNone);
  const std::string name =
      options.prompt.empty() ? model.settings().default_prompt : options.prompt;
  const std::string prompt = name.empty() ? "" : model.settings().prompt(name);
  std::int64_t texts = 0, cut = 0;
  for (std::vector<Document> documents = next_documents(items); !documents.empty();
       documents = next_documents(items)) {
    tokenize(model, options, prompt, documents);
    for (const Document& document : documents) {
      ++texts;
      if (options.chunk == 0 && !document.windows.empty()) cut += document.windows[0].cut ? 1 : 0;
    }
    answer(model, documents, options, globals, items.from_stdin() ? "stdin" : "argument");
  }
  if (cut > 0) {
    log_message(LogLevel::kWarning, fmt::format("{} of {} texts were cut to {} tokens", cut, texts,
                                                model.max_length()));
  }
  return 0;
}

}  // namespace

void add_embed(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<EmbedOptions>();
  CLI::App* verb = app.add_subcommand("embed", "gives the vector of each text");
  verb->add_option("MODEL", options->model, "folder of the model")->required();
  verb->add_option("TEXT", options->texts, "texts; - reads stdin, one a line");
  verb->add_flag("--truncate", options->truncate,
                 "cuts texts that are too long, instead of refusing them");
  verb->add_option("--chunk", options->chunk,
                   "tokens of a window: texts of any length, as the mean of their windows");
  verb->add_option("--overlap", options->overlap, "tokens that a window repeats");
  verb->add_option("--prompt", options->prompt, "name of one of the model's prompts");
  verb->footer(
      "Examples:\n  qkv embed models/all-MiniLM-L6-v2 \"a cat on a mat\" --json\n"
      "  qkv embed models/all-MiniLM-L6-v2 - --chunk 200 --overlap 20 < documents.txt");
  verb->callback([options, &globals] {
    globals.run = [options, &globals] { return run_embed(*options, globals); };
  });
}

}  // namespace qkv::inline v0
