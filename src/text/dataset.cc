#include "text/dataset.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "base/excerpt.h"
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "text/unicode.h"

namespace qkv::inline v0 {
namespace {

// Where messages point to: "FILE:LINE: ".
struct Source {
  std::string file;

  template <class... Args>
  [[noreturn]] void refuse(std::int64_t line, fmt::format_string<Args...> format,
                           Args&&... args) const {
    fail<DataError>("data", "{}:{}: {}", file, line,
                    fmt::format(format, std::forward<Args>(args)...));
  }
};

struct Record {
  std::vector<std::string> fields;
  std::int64_t line = 0;
};

// For a message: the first names in quotes, each cut to a line's length.
std::string name_list(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 12;
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i)
    out += fmt::format("{}'{}'", i == 0 ? "" : ", ", excerpt(names[i]));
  if (names.size() > kMost) out += fmt::format(" and {} more", names.size() - kMost);
  return out;
}

// Lines without their ends, LF or CRLF. A last line needs no end.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}
  std::int64_t number() const { return number_; }  // of the line that next() gave, from 1
  std::optional<std::string_view> next() {
    if (rest_.empty()) return std::nullopt;
    ++number_;
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

 private:
  std::string_view rest_;
  std::int64_t number_ = 0;
};

// Records of RFC 4180. A quote inside an unquoted field is an ordinary character.
class CsvParser {
 public:
  CsvParser(std::string_view text, const Source& source) : text_(text), source_(source) {}

  std::optional<Record> next() {
    if (at_ >= text_.size()) return std::nullopt;
    Record record;
    record.line = line_;
    do {
      record.fields.push_back(text_.substr(at_).starts_with('"') ? quoted_field() : plain_field());
    } while (!end_of_record());
    return record;
  }

 private:
  std::string plain_field() {
    const std::size_t end = std::min(text_.find_first_of(",\n", at_), text_.size());
    std::string_view field = text_.substr(at_, end - at_);
    at_ = end;
    if (field.ends_with('\r') && (end == text_.size() || text_[end] == '\n'))
      field.remove_suffix(1);
    return std::string(field);
  }

  std::string quoted_field() {
    const std::int64_t opened = line_;
    std::string field;
    ++at_;
    for (;;) {
      const std::size_t quote = text_.find('"', at_);
      if (quote == std::string_view::npos)
        source_.refuse(opened, "expected a closing quote, got the end of the file");
      const std::string_view part = text_.substr(at_, quote - at_);
      line_ += std::count(part.begin(), part.end(), '\n');
      field += part;
      at_ = quote + 1;
      if (at_ >= text_.size() || text_[at_] != '"') break;
      field += '"';
      ++at_;
    }
    if (text_.substr(at_).starts_with("\r\n")) ++at_;
    if (at_ < text_.size() && text_[at_] == '\r' && at_ + 1 == text_.size()) ++at_;
    if (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n') {
      source_.refuse(line_, "expected a comma or the line's end after a closing quote, got '{}'",
                     text_.substr(at_, 1));
    }
    return field;
  }

  // Steps over the separator.
  bool end_of_record() {
    if (at_ >= text_.size()) return true;
    if (text_[at_++] == ',') return false;
    ++line_;
    return true;
  }

  std::string_view text_;
  const Source& source_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
};

class TsvParser {
 public:
  explicit TsvParser(std::string_view text) : lines_(text) {}
  std::optional<Record> next() {
    const std::optional<std::string_view> line = lines_.next();
    if (!line) return std::nullopt;
    Record record;
    record.line = lines_.number();
    for (std::size_t begin = 0;;) {
      const std::size_t end = std::min(line->find('\t', begin), line->size());
      record.fields.emplace_back(line->substr(begin, end - begin));
      if (end == line->size()) return record;
      begin = end + 1;
    }
  }

 private:
  Lines lines_;
};

class RowChecker {
 public:
  RowChecker(const Source& source, const TableOptions& options)
      : source_(source), options_(options) {}
  TextRow check(TextRow row) const {
    if (!options_.allow_empty_text && is_blank(row.text)) {
      source_.refuse(row.line, "expected a text, got an empty one; remove the row or fill it in");
    }
    if (options_.need_label && is_blank(row.label))
      source_.refuse(row.line, "expected a label, got an empty one");
    return row;
  }

 private:
  const Source& source_;
  const TableOptions& options_;
};

std::optional<std::size_t> find_column(const Record& header, const std::string& name, bool needed,
                                       const Source& source) {
  const auto found = std::find(header.fields.begin(), header.fields.end(), name);
  if (found == header.fields.end()) {
    if (!needed) return std::nullopt;
    source.refuse(header.line, "expected a column '{}', got the columns {}", excerpt(name),
                  name_list(header.fields));
  }
  if (std::find(found + 1, header.fields.end(), name) != header.fields.end()) {
    source.refuse(header.line, "expected one column '{}', got two", name);
  }
  return static_cast<std::size_t>(found - header.fields.begin());
}

template <class Parser>
std::vector<TextRow> read_columns(Parser parser, const Source& source,
                                  const TableOptions& options) {
  const std::optional<Record> header = parser.next();
  if (!header) source.refuse(1, "expected a header line and rows, got an empty file");
  const std::size_t text = *find_column(*header, options.text, true, source);
  const std::optional<std::size_t> label =
      find_column(*header, options.label, options.need_label, source);
  const RowChecker checker(source, options);
  std::vector<TextRow> rows;
  while (std::optional<Record> record = parser.next()) {
    const std::size_t columns = header->fields.size();
    if (columns > 1 && record->fields.size() == 1 && record->fields[0].empty())
      continue;  // an empty line
    if (record->fields.size() != columns) {
      source.refuse(record->line, "expected {} fields as in the header, got {}", columns,
                    record->fields.size());
    }
    TextRow row;
    row.line = record->line;
    if (label) row.label = record->fields[*label];
    row.text = std::move(record->fields[text]);
    rows.push_back(checker.check(std::move(row)));
  }
  return rows;
}

std::string label_text(const Json& value, std::int64_t line, const Source& source) {
  if (value.is_string()) return value.as_string();
  if (value.is_int()) return std::to_string(value.as_int());
  source.refuse(line, "expected a label that is a string or an integer, got {}", value.type_name());
}

std::vector<TextRow> read_jsonl(std::string_view bytes, const Source& source,
                                const TableOptions& options) {
  const RowChecker checker(source, options);
  std::vector<TextRow> rows;
  Lines lines(bytes);
  while (const std::optional<std::string_view> line = lines.next()) {
    if (is_blank(*line)) continue;
    Json json;
    try {
      json = Json::parse(*line, "json");
    } catch (const DataError& error) {
      source.refuse(lines.number(), "{}", error_reason(error));
    }
    if (!json.is_object())
      source.refuse(lines.number(), "expected a JSON object, got {}", json.type_name());
    const Json* text = json.find(options.text);
    const Json* label = json.find(options.label);
    if (text == nullptr || (label == nullptr && options.need_label)) {
      std::vector<std::string> present;
      for (const Json::Member& member : json.as_object()) present.push_back(member.first);
      source.refuse(lines.number(), "expected the key '{}', got {}",
                    text == nullptr ? options.text : options.label,
                    present.empty() ? "an empty object" : "the keys " + name_list(present));
    }
    if (!text->is_string())
      source.refuse(lines.number(), "expected a text that is a string, got {}", text->type_name());
    TextRow row{text->as_string(), "", lines.number()};
    if (label != nullptr && (options.need_label || !label->is_null())) {
      row.label = label_text(*label, row.line, source);
    }
    rows.push_back(checker.check(std::move(row)));
  }
  return rows;
}

std::vector<TextRow> read_txt(std::string_view bytes, const Source& source,
                              const TableOptions& options) {
  if (options.need_label)
    source.refuse(1, "expected labels, got a .txt file, which has none; use .csv, .tsv or .jsonl");
  const RowChecker checker(source, options);
  std::vector<TextRow> rows;
  Lines lines(bytes);
  while (const std::optional<std::string_view> line = lines.next()) {
    rows.push_back(checker.check({std::string(*line), "", lines.number()}));
  }
  return rows;
}

std::string lower_extension(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

// Tokens that a batch of `count` sequences, the longest of `longest`, `sum` in all, is counted as.
std::int64_t batch_cost(const BatchOptions& options, std::int64_t count, std::int64_t longest,
                        std::int64_t sum) {
  return options.padded_count ? count * longest : sum;
}

// Cuts a run of samples into batches, in order.
void cut_batches(std::span<const std::int64_t> order, const std::vector<std::int64_t>& lengths,
                 const BatchOptions& options, std::vector<std::vector<std::int64_t>>& batches) {
  std::vector<std::int64_t> batch;
  std::int64_t longest = 0, sum = 0;
  for (const std::int64_t i : order) {
    const std::int64_t length = std::max<std::int64_t>(1, lengths[static_cast<std::size_t>(i)]);
    const auto count = static_cast<std::int64_t>(batch.size());
    if (count > 0 && batch_cost(options, count + 1, std::max(longest, length), sum + length) >
                         options.batch_tokens) {
      batches.push_back(std::move(batch));
      batch = {};
      longest = sum = 0;
    }
    batch.push_back(i);
    longest = std::max(longest, length);
    sum += length;
  }
  if (!batch.empty()) batches.push_back(std::move(batch));
}

}  // namespace

bool is_blank(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (!text::is_white_space(text::next_char(text, at))) return false;
  }
  return true;
}

std::vector<TextRow> read_table(const std::filesystem::path& path, const TableOptions& options) {
  return parse_table(read_file(path), path, options);
}

std::vector<TextRow> parse_table(std::string_view bytes, const std::filesystem::path& name,
                                 const TableOptions& options) {
  const Source source{name.string()};
  const std::size_t bad = find_invalid_utf8(bytes);
  if (bad != std::string_view::npos) {
    source.refuse(
        1 + std::count(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(bad), '\n'),
        "expected UTF-8, got the byte 0x{:02X} at position {} of the file",
        static_cast<unsigned char>(bytes[bad]), bad);
  }
  if (bytes.starts_with("\xEF\xBB\xBF")) bytes.remove_prefix(3);
  const std::string extension = lower_extension(name);
  std::vector<TextRow> rows;
  if (extension == ".csv") {
    rows = read_columns(CsvParser(bytes, source), source, options);
  } else if (extension == ".tsv") {
    rows = read_columns(TsvParser(bytes), source, options);
  } else if (extension == ".jsonl") {
    rows = read_jsonl(bytes, source, options);
  } else if (extension == ".txt") {
    rows = read_txt(bytes, source, options);
  } else {
    fail<DataError>("data", "expected a .csv, .tsv, .jsonl or .txt file, got '{}'", name.string());
  }
  if (rows.empty()) source.refuse(1, "expected at least one row, got none");
  return rows;
}

TokenBatch make_batch(const std::vector<const Sample*>& samples) {
  TokenBatch batch;
  std::vector<std::int64_t> lengths;
  for (const Sample* sample : samples) {
    lengths.push_back(static_cast<std::int64_t>(sample->ids.size()));
    batch.ids.insert(batch.ids.end(), sample->ids.begin(), sample->ids.end());
    batch.labels.push_back(sample->label);
  }
  batch.layout = RaggedLayout::from_lengths(lengths);
  for (std::size_t b = 0; b < samples.size(); ++b) batch.layout.samples[b] = samples[b]->index;
  return batch;
}

std::vector<std::vector<std::int64_t>> plan_batches(const std::vector<std::int64_t>& lengths,
                                                    std::int64_t epoch,
                                                    const BatchOptions& options) {
  require<ArgumentError>(options.batch_tokens >= 1, "batches", "expected batch_tokens >= 1, got {}",
                         options.batch_tokens);
  for (const std::int64_t length : lengths) {
    require<ArgumentError>(length >= 0, "batches", "expected lengths >= 0, got {}", length);
  }
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::vector<std::vector<std::int64_t>> batches;
  if (!options.shuffle) {
    cut_batches(order, lengths, options, batches);
    return batches;
  }
  constexpr std::int64_t kPoolBatches = 50;
  Random random(options.seed, static_cast<std::uint64_t>(epoch));
  random.shuffle(order.begin(), order.end());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    for (std::int64_t sum = 0; end < order.size() && sum / kPoolBatches < options.batch_tokens;
         ++end) {
      sum += std::max<std::int64_t>(1, lengths[static_cast<std::size_t>(order[end])]);
    }
    const std::span<std::int64_t> pool(order.data() + begin, end - begin);
    std::stable_sort(pool.begin(), pool.end(), [&](std::int64_t a, std::int64_t b) {
      return lengths[static_cast<std::size_t>(a)] < lengths[static_cast<std::size_t>(b)];
    });
    cut_batches(pool, lengths, options, batches);
    begin = end;
  }
  random.shuffle(batches.begin(), batches.end());
  return batches;
}

}  // namespace qkv::inline v0
