// qkv tokenize: text to token ids and back.
#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "qkv/tokenizer.h"

#include "base/check.h"
#include "io/model_tokenizer.h"
#include "terminal.h"
#include "verbs.h"

namespace qkv::inline v0 {
namespace {

struct TokenizeOptions {
  std::string model;
  std::vector<std::string> items;
  bool decode = false, keep_special = false, no_special = false, plain = false, replace = false;
  std::int64_t max_length = 0, pad = 0;  // 0: not asked for
};

// "stdin:3: " before messages about a line of stdin.
std::string place(const ItemReader& reader) {
  return reader.from_stdin() ? fmt::format("stdin:{}: ", reader.number()) : "";
}

// Ids parted by blanks or commas; what follows a tab is the pieces that `tokenize` prints.
std::vector<std::int32_t> parse_ids(std::string_view text, const ItemReader& reader) {
  text = text.substr(0, text.find('\t'));
  std::vector<std::int32_t> ids;
  constexpr std::string_view kBetween = " ,[]\r";
  for (std::size_t at = text.find_first_not_of(kBetween); at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    std::int32_t id = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
    require<ArgumentError>(error == std::errc() && stop == text.data() + end, "tokenize",
                           "{}expected token ids, got '{}'", place(reader),
                           text.substr(at, end - at));
    ids.push_back(id);
    at = std::min(text.find_first_not_of(kBetween, end), text.size());
  }
  return ids;
}

Json id_array(const std::vector<std::int32_t>& ids) {
  Json array = Json::array();
  for (const std::int32_t id : ids) array.push_back(id);
  return array;
}

// A piece on one line: control characters escaped as in JSON.
std::string visible_piece(const std::string& piece) {
  const std::string quoted = Json(piece).dump();
  const bool escaped = piece.find_first_of("\n\r\t") != std::string::npos;
  return escaped ? quoted.substr(1, quoted.size() - 2) : piece;
}

void print_encoding(const std::string& text, const Encoding& encoding, bool json) {
  if (json) {
    Json out = Json::object();
    out["text"] = text;
    out["ids"] = id_array(encoding.ids);
    Json tokens = Json::array(), offsets = Json::array();
    for (const std::string& token : encoding.tokens) tokens.push_back(token);
    for (const auto& [begin, end] : encoding.offsets) offsets.push_back(Json::Array{begin, end});
    out["tokens"] = std::move(tokens);
    out["offsets"] = std::move(offsets);
    print_json(out);
    return;
  }
  std::string line, pieces;
  for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
    line += (i > 0 ? " " : "") + std::to_string(encoding.ids[i]);
    pieces += (i > 0 ? " " : "") + visible_piece(encoding.tokens[i]);
  }
  print_line(line + "\t" + pieces);
}

void print_decoded(const std::vector<std::int32_t>& ids, const std::string& text, bool json) {
  if (!json) return print_line(text);
  Json out = Json::object();
  out["ids"] = id_array(ids);
  out["text"] = text;
  print_json(out);
}

int run_tokenize(const TokenizeOptions& options, const Globals& globals) {
  const Tokenizer tokenizer = io::load_tokenizer(options.model);
  EncodeOptions encode;
  encode.replace_invalid = options.replace;
  if (options.max_length > 0) encode.truncation = Truncation{.max_length = options.max_length};
  if (options.pad > 0) {
    encode.padding = tokenizer.padding().value_or(Padding{});
    encode.padding->length = options.pad;
    if (const auto id = tokenizer.special_id("pad"); id && !tokenizer.padding()) {
      encode.padding->id = *id;
      encode.padding->token = tokenizer.token(*id);
    }
  }
  encode.add_special_tokens = !options.no_special;
  encode.parse_special = !options.plain;
  ItemReader reader(options.items, "tokenize");
  for (std::string item; reader.next(item);) {
    if (options.decode) {
      const std::vector<std::int32_t> ids = parse_ids(item, reader);
      print_decoded(ids, tokenizer.decode(ids, !options.keep_special), globals.json);
      continue;
    }
    try {
      print_encoding(item, tokenizer.encode(item, encode), globals.json);
    } catch (const DataError& error) {
      fail<DataError>("tokenize", "{}{}", place(reader), error_reason(error));
    }
  }
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Globals& globals) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* verb =
      app.add_subcommand("tokenize", "text to token ids, pieces and offsets, and back");
  verb->add_option("MODEL", options->model,
                   "folder with a tokenizer, tokenizer.json, .model, .gguf, or llama2.c's .bin")
      ->required();
  verb->add_option("TEXT", options->items,
                   "texts, or ids with --decode; - or nothing reads stdin, one a line");
  verb->add_flag("--decode", options->decode, "ids to text");
  verb->add_flag("--keep-special", options->keep_special,
                 "with --decode: keep special tokens in the text");
  verb->add_flag("--no-special", options->no_special, "add no special tokens such as [CLS]");
  verb->add_flag("--plain", options->plain, "special tokens written in the text are plain text");
  verb->add_flag("--replace-invalid", options->replace,
                 "bytes that are not UTF-8 become U+FFFD, not an error");
  verb->add_option("--max-length", options->max_length,
                   "cut each text to so many tokens, special ones included")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  verb->add_option("--pad", options->pad, "pad each text to so many tokens")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  verb->footer(
      "Prints ids, a tab, pieces; with --json also offsets in characters.\n\n"
      "Examples:\n  qkv tokenize runs/demo \"where is my red power bank?\" --json\n"
      "  qkv tokenize runs/demo - < texts.txt | qkv tokenize runs/demo --decode -");
  verb->callback([options, &globals] {
    globals.run = [options, &globals] { return run_tokenize(*options, globals); };
  });
}

}  // namespace qkv::inline v0
