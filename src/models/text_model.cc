#include "models/text_model.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "autograd/functions.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "io/model_tokenizer.h"
#include "models/json_reader.h"

namespace qkv::inline v0 {
namespace {

namespace fs = std::filesystem;

// Tokens of a batch: enough for products to be efficient, few enough for its activations to stay
// in the caches.
constexpr std::int64_t kBatchTokens = 512;

// What tokenizer_config.json says about the length; files without a limit say 1e30.
std::int64_t tokenizer_limit(const fs::path& folder, std::int64_t otherwise) {
  const fs::path path = folder / "tokenizer_config.json";
  std::error_code code;
  if (!fs::exists(path, code)) return otherwise;
  const Json json = read_json_file(path);
  const Json* limit = json.find("model_max_length");
  if (limit == nullptr || !limit->is_int() || limit->as_int() < 1) return otherwise;
  return std::min(limit->as_int(), otherwise);
}

// Indices of the texts, longest first, cut into batches.
std::vector<std::vector<std::size_t>> make_batches(std::span<const TextTokens> texts) {
  std::vector<std::size_t> order(texts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return texts[a].ids.size() > texts[b].ids.size();
  });
  std::vector<std::vector<std::size_t>> batches;
  std::int64_t tokens = kBatchTokens;
  for (const std::size_t i : order) {
    const auto n = static_cast<std::int64_t>(texts[i].ids.size());
    if (tokens + n > kBatchTokens) {
      batches.emplace_back();
      tokens = 0;
    }
    batches.back().push_back(i);
    tokens += n;
  }
  return batches;
}

// Divides each row by its length; a row of zeros stays.
void normalise(const Tensor& rows) {
  const std::int64_t width = rows.dim(1);
  for (std::int64_t b = 0; b < rows.dim(0); ++b) {
    float* row = rows.data<float>() + b * width;
    double square = 0;
    for (std::int64_t c = 0; c < width; ++c)
      square += static_cast<double>(row[c]) * static_cast<double>(row[c]);
    const double factor = 1 / std::max(std::sqrt(square), 1e-12);
    for (std::int64_t c = 0; c < width; ++c)
      row[c] = static_cast<float>(static_cast<double>(row[c]) * factor);
  }
}

Var gathered(const Var& hidden, std::int64_t start, const std::vector<std::int64_t>& rows) {
  const Tensor out = Tensor::empty({static_cast<std::int64_t>(rows.size()), hidden.value().dim(1)});
  for (std::size_t r = 0; r < rows.size(); ++r) {
    out.narrow(0, static_cast<std::int64_t>(r), 1)
        .copy_from(hidden.value().narrow(0, start + rows[r], 1));
  }
  return Var(out);
}

TextTokens tokens_of(Encoding encoding) {
  TextTokens text;
  text.cut = !encoding.overflowing.empty();
  text.ids = std::move(encoding.ids);
  text.types = std::move(encoding.type_ids);
  text.offsets = std::move(encoding.offsets);
  return text;
}

}  // namespace

TextModel::TextModel(Checkpoint checkpoint, Tokenizer tokenizer, SentenceSettings settings)
    : checkpoint_(std::move(checkpoint)),
      tokenizer_(std::move(tokenizer)),
      settings_(std::move(settings)) {}

TextModel TextModel::load(const fs::path& folder, std::optional<HeadKind> head) {
  LoadOptions options;
  options.head = head;
  options.read_only = true;
  Checkpoint checkpoint = load_checkpoint(folder, options);  // first: it says what is no model
  TextModel text(std::move(checkpoint), io::load_tokenizer(folder), read_sentence_settings(folder));
  const TransformerConfig& config = text.model().config();
  require<ModelError>(text.tokenizer_.vocab_size() <= config.vocab_size, "tokenizer",
                      "expected at most {} tokens, the rows of the embedding, got {}",
                      config.vocab_size, text.tokenizer_.vocab_size());
  text.max_length_ = tokenizer_limit(folder, config.max_tokens());
  if (text.settings_.max_length)
    text.max_length_ = std::min(text.max_length_, *text.settings_.max_length);
  text.checkpoint_.model.module().keep_packed();
  return text;
}

TextTokens TextModel::checked(Encoding encoding, bool truncate) const {
  require<DataError>(truncate || static_cast<std::int64_t>(encoding.ids.size()) <= max_length_,
                     "text",
                     "expected a text of at most {} tokens, got one of {}; --truncate cuts it, "
                     "--chunk takes it in parts",
                     max_length_, encoding.ids.size());
  TextTokens text = tokens_of(std::move(encoding));
  if (checkpoint_.model.config().type_vocab <= 1)
    std::fill(text.types.begin(), text.types.end(), 0);
  return text;
}

namespace {

EncodeOptions encode_options(bool truncate, std::int64_t length, std::int64_t overlap) {
  EncodeOptions options;
  if (truncate) {
    options.truncation.emplace();
    options.truncation->max_length = length;
    options.truncation->stride = overlap;
  }
  return options;
}

}  // namespace

TextTokens TextModel::tokens(const std::string& text, bool truncate) const {
  return checked(tokenizer_.encode(text, encode_options(truncate, max_length_, 0)), truncate);
}

TextTokens TextModel::tokens(const std::string& first, const std::string& second,
                             bool truncate) const {
  return checked(tokenizer_.encode_pair(first, second, encode_options(truncate, max_length_, 0)),
                 truncate);
}

std::vector<TextTokens> TextModel::windows(const std::string& text, std::int64_t length,
                                           std::int64_t overlap) const {
  require<ArgumentError>(length >= 1 && length <= max_length_, "chunk",
                         "expected 1 to {} tokens, the most that the model takes, got {}",
                         max_length_, length);
  Encoding encoding = tokenizer_.encode(text, encode_options(true, length, overlap));
  std::vector<Encoding> rest = std::move(encoding.overflowing);
  encoding.overflowing.clear();
  std::vector<TextTokens> all;
  all.push_back(checked(std::move(encoding), true));
  for (Encoding& window : rest) all.push_back(checked(std::move(window), true));
  return all;
}

void TextModel::each_hidden(std::span<const TextTokens> texts, const HiddenVisitor& f) const {
  const std::vector<std::vector<std::size_t>> batches = make_batches(texts);
  // With one batch the parts of each layer run side by side, with several the batches do.
  parallel_for(static_cast<std::int64_t>(batches.size()), [&](std::int64_t i) {
    const std::vector<std::size_t>& batch = batches[static_cast<std::size_t>(i)];
    std::vector<std::int64_t> lengths;
    std::vector<std::int32_t> ids, types;
    for (const std::size_t t : batch) {
      lengths.push_back(static_cast<std::int64_t>(texts[t].ids.size()));
      ids.insert(ids.end(), texts[t].ids.begin(), texts[t].ids.end());
      types.insert(types.end(), texts[t].types.begin(), texts[t].types.end());
    }
    const RaggedLayout layout = RaggedLayout::from_lengths(lengths);
    Context context;
    context.layout = &layout;
    f(batch, context, model().hidden(context, ids, {types}));
  });
}

Tensor TextModel::embed(std::span<const TextTokens> texts) const {
  const std::int64_t width = model().config().d_model;
  Tensor out = Tensor::empty({static_cast<std::int64_t>(texts.size()), width});
  each_hidden(texts, [&](std::span<const std::size_t> batch, Context& context, const Var& hidden) {
    const Tensor pooled = autograd::pool(context, hidden, settings_.pooling).value();
    if (settings_.normalize) normalise(pooled);
    for (std::size_t b = 0; b < batch.size(); ++b) {
      out.narrow(0, static_cast<std::int64_t>(batch[b]), 1)
          .copy_from(pooled.narrow(0, static_cast<std::int64_t>(b), 1));
    }
  });
  return out;
}

void TextModel::each_logits(std::span<const TextTokens> texts, const Visitor& visit,
                            std::span<const std::vector<std::int64_t>> rows) const {
  std::mutex mutex;
  const bool whole = model().config().head.kind == HeadKind::kSequence;
  each_hidden(texts, [&](std::span<const std::size_t> batch, Context& context, const Var& hidden) {
    if (whole) {
      const Tensor logits = model().head(context, hidden).value();
      const std::lock_guard lock(mutex);
      for (std::size_t b = 0; b < batch.size(); ++b)
        visit(batch[b], logits.narrow(0, static_cast<std::int64_t>(b), 1));
      return;
    }
    for (std::size_t b = 0; b < batch.size(); ++b) {
      const std::int64_t start = context.layout->starts[b];
      const auto length = context.layout->length(static_cast<std::int64_t>(b));
      if (!rows.empty() && rows[batch[b]].empty()) continue;
      const Var part = rows.empty() ? Var(hidden.value().narrow(0, start, length))
                                    : gathered(hidden, start, rows[batch[b]]);
      const Tensor logits = model().head(context, part).value();
      const std::lock_guard lock(mutex);
      visit(batch[b], logits);
    }
  });
}

}  // namespace qkv::inline v0
