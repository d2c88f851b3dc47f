#include "train/data.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

#include "base/check.h"
#include "base/excerpt.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "base/thread_pool.h"

namespace qkv::inline v0::train {
namespace {

template <class T>
void cut(std::vector<T>& items, std::size_t length, bool keep_last) {
  if (items.size() <= length) return;
  if (keep_last) items[length - 1] = std::move(items.back());
  items.resize(length);
}

std::string name_of(const std::filesystem::path& path) { return path.filename().string(); }

std::uint64_t hash_file(const std::filesystem::path& path, std::uint64_t hash) {
  if (path.empty()) return hash_pair(hash, 0);
  const auto file = MappedFile::open(path);
  return hash_pair(hash, hash_text({reinterpret_cast<const char*>(file->data()), file->size()}));
}

std::vector<TextRow> read_rows(const std::filesystem::path& path, const DataSection& data) {
  if (path.empty()) return {};
  return read_table(path, {.text = data.text, .label = data.label});
}

Tokenizer make_tokenizer(const TokenizerSection& section, const std::vector<TextRow>& rows) {
  if (!section.from.empty()) return Tokenizer::load(section.from);
  std::vector<std::string> texts;
  texts.reserve(rows.size());
  for (const TextRow& row : rows) texts.push_back(row.text);
  return Tokenizer::train(texts, section.options);
}

// Nothing is cut in silence.
void report_cut(const std::string& source, const char* part, std::int64_t cut, std::size_t texts,
                std::int64_t limit) {
  if (cut == 0) return;
  log_message(
      LogLevel::kWarning,
      fmt::format("{}: {} of {} {} texts ({:.1f} %) were cut to {} tokens", source, cut, texts,
                  part, 100.0 * static_cast<double>(cut) / static_cast<double>(texts), limit));
}

}  // namespace

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

void cut_encoding(Encoding& encoding, std::int64_t length, const Tokenizer& tokenizer) {
  const std::optional<std::int32_t> sep = tokenizer.special_id("sep");
  const bool closed = sep && !encoding.ids.empty() && encoding.ids.back() == *sep;
  const auto size = static_cast<std::size_t>(length);
  cut(encoding.ids, size, closed);
  cut(encoding.tokens, size, closed);
  cut(encoding.offsets, size, closed);
}

EncodedTexts encode_texts(const std::vector<TextRow>& rows, const Tokenizer& tokenizer,
                          const TextLimits& limits, const std::string& source) {
  EncodedTexts out;
  std::vector<Encoding> encodings(rows.size());
  const EncodeOptions options{.with_pieces = false};
  parallel_chunks(static_cast<std::int64_t>(rows.size()), 64,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i) {
                      const auto at = static_cast<std::size_t>(i);
                      encodings[at] = tokenizer.encode(rows[at].text, options);
                    }
                  });
  out.ids.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::int32_t>& ids = encodings[i].ids;
    require<DataError>(!ids.empty(), "data", "{}:{}: expected a text, got one without any token",
                       source, rows[i].line);
    const auto length = static_cast<std::int64_t>(ids.size());
    if (length <= limits.max_length) {
      out.ids.push_back(std::move(ids));
      continue;
    }
    require<DataError>(
        limits.truncate, "data",
        "{}:{}: expected at most {} tokens, got {}; shorten the text, raise data.max_length (and "
        "model.max_positions), or choose to truncate",
        source, rows[i].line, limits.max_length, length);
    if (out.truncated == 0) {
      const std::size_t around = tokenizer.encode("", options).ids.size();
      require<DataError>(
          static_cast<std::size_t>(limits.max_length) > around, "data",
          "{}:{}: expected a limit that leaves room for the text when it is cut, got "
          "{} tokens, {} of them special",
          source, rows[i].line, limits.max_length, around);
    }
    cut_encoding(encodings[i], limits.max_length, tokenizer);
    out.ids.push_back(std::move(ids));
    ++out.truncated;
  }
  return out;
}

std::vector<std::string> label_list(const std::vector<TextRow>& rows, const std::string& source) {
  std::set<std::string> labels;
  for (const TextRow& row : rows) labels.insert(row.label);
  require<DataError>(labels.size() >= 2, "data",
                     "{}: expected at least two different labels, got {}", source,
                     labels.empty() ? "none" : "only '" + excerpt(*labels.begin()) + "'");
  return {labels.begin(), labels.end()};
}

std::vector<std::int32_t> label_indices(const std::vector<TextRow>& rows,
                                        const std::vector<std::string>& labels,
                                        const std::string& source) {
  std::unordered_map<std::string, std::int32_t> index;
  for (std::size_t i = 0; i < labels.size(); ++i) index[labels[i]] = static_cast<std::int32_t>(i);
  std::vector<std::int32_t> out;
  out.reserve(rows.size());
  for (const TextRow& row : rows) {
    const auto found = index.find(row.label);
    require<DataError>(found != index.end(), "data",
                       "{}:{}: expected one of the {} labels seen in training, got '{}'", source,
                       row.line, labels.size(), excerpt(row.label));
    out.push_back(found->second);
  }
  return out;
}

std::vector<Sample> make_samples(EncodedTexts encoded, const std::vector<std::int32_t>& labels) {
  std::vector<Sample> out(encoded.ids.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].ids = std::move(encoded.ids[i]);
    out[i].label = labels[i];
    out[i].index = static_cast<std::int64_t>(i);
  }
  return out;
}

std::vector<TextRow> split_by_hash(std::vector<TextRow>& rows, double share) {
  const auto limit = static_cast<std::uint64_t>(share * 0x1p53);
  const auto chosen = [&](const TextRow& row) { return (hash_text(row.text) >> 11) < limit; };
  std::set<std::string> rest;
  for (const TextRow& row : rows) {
    if (!chosen(row)) rest.insert(row.label);
  }
  std::vector<TextRow> taken, kept;
  for (TextRow& row : rows) {
    const bool take = chosen(row) && rest.count(row.label) > 0;
    (take ? taken : kept).push_back(std::move(row));
  }
  rows = std::move(kept);
  return taken;
}

TrainData load_train_data(const TrainConfig& config, const TextLimits& limits) {
  const DataSection& data = config.data;
  std::vector<TextRow> train = read_rows(data.train, data);
  std::vector<TextRow> validation = read_rows(data.validation, data);
  const std::vector<TextRow> test = read_rows(data.test, data);
  const std::string train_name = name_of(data.train);
  std::vector<std::string> labels = label_list(train, train_name);
  if (data.validation.empty()) validation = split_by_hash(train, data.validation_share);
  const std::string validation_name =
      data.validation.empty() ? train_name : name_of(data.validation);
  const auto samples = [&](const std::vector<TextRow>& rows, const Tokenizer& tokenizer,
                           const std::string& name, const char* part) {
    const std::vector<std::int32_t> indices = label_indices(rows, labels, name);
    EncodedTexts encoded = encode_texts(rows, tokenizer, limits, name);
    report_cut(name, part, encoded.truncated, rows.size(), limits.max_length);
    return make_samples(std::move(encoded), indices);
  };
  std::uint64_t hash = hash_file(data.train, 0);
  hash = hash_file(data.validation, hash);
  TrainData out{
      .tokenizer = make_tokenizer(config.tokenizer, train), .limits = limits, .hash = hex(hash)};
  out.train = samples(train, out.tokenizer, train_name, "training");
  out.validation = samples(validation, out.tokenizer, validation_name, "validation");
  out.test = samples(test, out.tokenizer, name_of(data.test), "test");
  out.labels = std::move(labels);
  return out;
}

}  // namespace qkv::inline v0::train
