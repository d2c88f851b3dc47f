#include "support/fuzz_targets.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "qkv/error.h"
#include "qkv/tokenizer.h"

#include "base/json.h"
#include "io/safetensors.h"
#include "io/weight_files.h"
#include "support/strings.h"
#include "text/dataset.h"
#include "text/embedded_vocabulary.h"
#include "text/sentence_piece.h"
#include "text/unicode.h"

namespace qkv::testing {
namespace {

void promise(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

constexpr std::string_view kText = "The red [MASK] 红色 naïve 😀 <mask>  ";

// Runs `body`; false if it ends in a typed error that blames the input.
template <class F>
bool accepted(F body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    promise(error.code() != ErrorCode::kInternal, error.what());
    return false;
  }
}

// A file in memory with a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    promise(
        fd_ >= 0 && ::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
        "memory file");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// The same under a name of its own, for readers that go by the name.
class NamedFile {
 public:
  NamedFile(std::string_view bytes, const std::string& name)
      : memory_(bytes),
        path_(std::filesystem::temp_directory_path() / (std::to_string(::getpid()) + name)) {
    std::filesystem::remove(path_);
    std::filesystem::create_symlink(memory_.path(), path_);
  }
  ~NamedFile() {
    std::error_code code;
    std::filesystem::remove(path_, code);
  }
  NamedFile(const NamedFile&) = delete;
  NamedFile& operator=(const NamedFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  MemoryFile memory_;
  std::filesystem::path path_;
};

// A folder with one shard of one tensor.
class ShardFolder {
 public:
  ShardFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "qkv-fuzz-XXXXXX").string();
    promise(::mkdtemp(name.data()) != nullptr, "a folder");
    path_ = name;
    const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
    std::string shard(8, '\0');
    shard[0] = static_cast<char>(header.size());
    std::ofstream(path_ / "model-00001-of-00001.safetensors", std::ios::binary)
        << shard << header << "ab";
  }
  ~ShardFolder() {
    std::error_code code;
    std::filesystem::remove_all(path_, code);
  }
  ShardFolder(const ShardFolder&) = delete;
  ShardFolder& operator=(const ShardFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Asks a model's files for everything that they say they have.
void read_weights(const std::filesystem::path& path, std::size_t file_bytes) {
  std::optional<io::WeightFiles> files;
  if (!accepted([&] { files.emplace(io::WeightFiles::open(path)); })) return;
  promise(files->bytes() <= file_bytes, "tensors come from the file");
  promise(!files->config().dump().empty() && !files->metadata().dump().empty(), "dumped");
  accepted([&] { files->vocabulary(); });
  for (const std::string& name : files->names()) {
    promise(files->contains(name), "a name that is listed is there");
    Tensor bytes;
    const bool ok = accepted([&] {
      bytes = files->is_quantized(name) ? files->quantized(name).bytes : files->tensor(name);
    });
    if (!ok) continue;
    promise(files->is_quantized(name) || bytes.shape() == files->shape(name), "shapes agree");
    const auto* data = static_cast<const unsigned char*>(bytes.raw());
    unsigned sum = 0;
    for (std::size_t i = 0; i < bytes.nbytes(); ++i) sum += data[i];
    promise(sum <= 255 * bytes.nbytes(), "every byte can be read");
  }
}

// UTF-8 by its definition: decode, and see whether the shortest form gives the same bytes back.
bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const std::size_t n = lead < 0x80             ? 1
                          : (lead & 0xE0) == 0xC0 ? 2
                          : (lead & 0xF0) == 0xE0 ? 3
                          : (lead & 0xF8) == 0xF0 ? 4
                                                  : 0;
    if (n == 0 || at + n > text.size()) return false;
    char32_t c = n == 1 ? lead : lead & (0x7F >> n);
    for (std::size_t i = 1; i < n; ++i) {
      const auto byte = static_cast<unsigned char>(text[at + i]);
      if ((byte & 0xC0) != 0x80) return false;
      c = (c << 6) | (byte & 0x3F);
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return false;
    std::string shortest;
    text::append_utf8(shortest, c);
    if (shortest != text.substr(at, n)) return false;
    at += n;
  }
  return true;
}

// `complete`: every text has an encoding; else some may lack a token, or take a pattern too long.
void check_encoding(const Tokenizer& tokenizer, std::string_view text, bool complete) {
  Encoding encoding;
  const bool ok = accepted([&] { encoding = tokenizer.encode(text); });
  promise(!ok || is_utf8(text), "encode takes only UTF-8");
  promise(ok || !complete || !is_utf8(text), "encode takes every UTF-8");
  if (!ok) return;
  promise(encoding.ids.size() == encoding.tokens.size() &&
              encoding.ids.size() == encoding.offsets.size(),
          "equal sizes");
  const std::int64_t chars = text::count_chars(text);
  for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
    promise(tokenizer.token(encoding.ids[i]) == encoding.tokens[i], "tokens fit ids");
    const auto [begin, end] = encoding.offsets[i];
    promise(0 <= begin && begin <= end && end <= chars, "offsets lie in the text");
  }
  EncodeOptions ids_only;
  ids_only.with_pieces = false;
  promise(tokenizer.encode(text, ids_only).ids == encoding.ids,
          "ids do not depend on what else is asked for");
  promise(is_utf8(tokenizer.decode(encoding.ids)) && is_utf8(tokenizer.decode(encoding.ids, false)),
          "decoded text is UTF-8");
}

std::vector<Tokenizer> train_each_kind() {
  const std::vector<std::string> texts = {"the red power bank is here, the red one",
                                          "红色的充电宝 红色的", "naïve café naïve café 😀😀"};
  std::vector<Tokenizer> tokenizers;
  for (const TokenizerKind kind :
       {TokenizerKind::kChar, TokenizerKind::kBpe, TokenizerKind::kWordPiece}) {
    for (const bool lowercase : {false, true}) {
      TokenizerOptions options;
      options.kind = kind;
      options.vocab_size = 300;
      options.lowercase = lowercase;
      tokenizers.push_back(Tokenizer::train(texts, options));
    }
  }
  return tokenizers;
}

}  // namespace

void fuzz_json(std::string_view bytes) {
  Json value;
  if (!accepted([&] { value = Json::parse(bytes); })) return;
  promise(is_utf8(bytes), "only UTF-8 is taken");
  promise(Json::parse(value.dump()) == value, "a dumped value reads back equal");
  promise(Json::parse(value.dump(2)) == value, "an indented value reads back equal");
}

void fuzz_utf8(std::string_view bytes) {
  const std::size_t bad = find_invalid_utf8(bytes);
  promise((bad == std::string_view::npos) == is_utf8(bytes), "valid exactly by the definition");
  if (bad != std::string_view::npos)
    promise(is_utf8(bytes.substr(0, bad)), "what is before the position is valid");
  const std::string mended = text::replace_invalid_utf8(bytes);
  promise(is_utf8(mended), "a mended text is valid");
  promise(is_utf8(bytes) == (mended == bytes), "a valid text is left alone");
}

void fuzz_table(std::string_view bytes) {
  if (bytes.empty()) return;
  constexpr std::array<const char*, 4> kNames = {"f.csv", "f.tsv", "f.jsonl", "f.txt"};
  const auto choice = static_cast<unsigned char>(bytes[0]);
  TableOptions options;
  options.need_label = (choice & 4) != 0;
  options.allow_empty_text = (choice & 8) != 0;
  std::vector<TextRow> rows;
  if (!accepted([&] { rows = parse_table(bytes.substr(1), kNames[choice & 3], options); })) return;
  promise(!rows.empty(), "a table has rows");
  std::int64_t line = 0;
  std::string csv = "label,text\r\n";
  for (const TextRow& row : rows) {
    promise(row.line > line, "lines grow");
    line = row.line;
    promise(is_utf8(row.text) && is_utf8(row.label), "fields are UTF-8");
    csv += csv_field(row.label) + "," + csv_field(row.text) + "\r\n";
  }
  const std::vector<TextRow> back = parse_table(csv, "f.csv", options);
  promise(back.size() == rows.size(), "written as CSV: as many rows");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    promise(back[i].text == rows[i].text && back[i].label == rows[i].label,
            "written as CSV: the same fields");
  }
}

void fuzz_safetensors(std::string_view bytes) {
  const MemoryFile memory(bytes);
  io::SafetensorsFile file;
  if (!accepted([&] { file = io::SafetensorsFile::open(memory.path()); })) return;
  std::size_t total = 0;
  for (const std::string& name : file.names()) {
    const Tensor& tensor = file.tensor(name);
    const auto* data = static_cast<const unsigned char*>(tensor.raw());
    unsigned sum = 0;
    for (std::size_t i = 0; i < tensor.nbytes(); ++i) sum += data[i];
    promise(sum <= 255 * tensor.nbytes(), "every byte can be read");
    total += tensor.nbytes();
  }
  promise(total + 8 <= bytes.size(), "tensors come from the file");
}

void fuzz_gguf(std::string_view bytes) {
  const NamedFile file(bytes, "-fuzz.gguf");
  read_weights(file.path(), bytes.size());
}

void fuzz_llama2c(std::string_view bytes) {
  const NamedFile file(bytes, "-fuzz.bin");
  read_weights(file.path(), bytes.size());
}

void fuzz_index(std::string_view bytes) {
  static const ShardFolder folder;
  const MemoryFile index(bytes);
  const std::filesystem::path link = folder.path() / "model.safetensors.index.json";
  std::filesystem::remove(link);
  std::filesystem::create_symlink(index.path(), link);
  read_weights(folder.path(), 2);
}

void fuzz_tokenizer(std::string_view bytes) {
  const std::size_t nul = std::min(bytes.find('\0'), bytes.size());
  const MemoryFile memory(bytes.substr(0, nul));
  std::vector<Tokenizer> loaded;
  if (!accepted([&] { loaded.push_back(Tokenizer::load(memory.path())); })) return;
  check_encoding(loaded[0], bytes.substr(std::min(nul + 1, bytes.size())), false);
  check_encoding(loaded[0], kText, false);
}

void fuzz_sentence_piece(std::string_view bytes) {
  std::vector<Tokenizer> made;
  const bool ok = accepted([&] {
    made.emplace_back(std::make_shared<const Tokenizer::Impl>(
        text::parts_of_sentence_piece(text::parse_sentence_piece(bytes), {}, Json::object())));
  });
  if (!ok) return;
  for (const std::string_view text : {kText, bytes.substr(0, 200)})
    check_encoding(made[0], text, false);
}

void fuzz_vocabulary(std::string_view bytes) {
  const MemoryFile memory(bytes);
  std::vector<Tokenizer> made;
  const bool ok = accepted(
      [&] { made.push_back(text::make_tokenizer(text::read_llama2c_vocabulary(memory.path()))); });
  if (ok) check_encoding(made[0], kText, false);
}

void fuzz_encode(std::string_view bytes) {
  static const std::vector<Tokenizer> tokenizers = train_each_kind();
  for (const Tokenizer& tokenizer : tokenizers) check_encoding(tokenizer, bytes, true);
  if (!is_utf8(bytes)) return;
  EncodeOptions plain;
  plain.parse_special = false;
  const Tokenizer& byte_level = tokenizers[2];
  promise(byte_level.decode(byte_level.encode(bytes, plain).ids) == bytes,
          "byte-level pieces spell the text");
}

std::span<const FuzzTarget> fuzz_targets() {
  static constexpr std::array<FuzzTarget, 11> kTargets = {{{"json", fuzz_json},
                                                           {"utf8", fuzz_utf8},
                                                           {"table", fuzz_table},
                                                           {"safetensors", fuzz_safetensors},
                                                           {"gguf", fuzz_gguf},
                                                           {"llama2c", fuzz_llama2c},
                                                           {"index", fuzz_index},
                                                           {"tokenizer", fuzz_tokenizer},
                                                           {"encode", fuzz_encode},
                                                           {"sentence_piece", fuzz_sentence_piece},
                                                           {"vocabulary", fuzz_vocabulary}}};
  return kTargets;
}

}  // namespace qkv::testing
