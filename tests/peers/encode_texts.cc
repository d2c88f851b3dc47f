// Encodes the texts of stdin, for comparisons with other tokenizers:
//   encode_texts FOLDER|FILE [special] [plain] [decode] [time SECONDS]
// Each line of stdin is a JSON string, or an array of two for a pair. Prints for each line a JSON
// object of ids, offsets and type_ids (and text, decoded). With `time`, encodes all texts again and
// again on one thread for so long and prints the best seconds for one pass without offsets.
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "qkv/tokenizer.h"

#include "base/json.h"
#include "text/embedded_vocabulary.h"

namespace {
using namespace qkv;

double best_pass(const Tokenizer& tokenizer, const std::vector<Json>& texts, EncodeOptions options,
                 double seconds) {
  using Clock = std::chrono::steady_clock;
  options.with_pieces = false;
  double best = 1e30;
  std::size_t count = 0;
  for (const Clock::time_point begin = Clock::now();
       std::chrono::duration<double>(Clock::now() - begin).count() < seconds;) {
    const Clock::time_point start = Clock::now();
    for (const Json& text : texts) count += tokenizer.encode(text.as_string(), options).ids.size();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return count > 0 ? best : 0;
}

Json numbers(const std::vector<std::int32_t>& values) {
  Json array = Json::array();
  for (const std::int32_t value : values) array.push_back(value);
  return array;
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: encode_texts FOLDER [special] [plain] [decode] [time SECONDS]\n");
    return 2;
  }
  EncodeOptions options;
  options.add_special_tokens = false;
  bool decode = false;
  double seconds = 0;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "special") options.add_special_tokens = true;
    if (word == "plain") options.parse_special = false;
    if (word == "decode") decode = true;
    if (word == "time" && i + 1 < argc) seconds = std::stod(argv[++i]);
  }
  const std::filesystem::path path = argv[1];
  const Tokenizer tokenizer = path.extension() == ".bin"
                                  ? text::make_tokenizer(text::read_llama2c_vocabulary(path))
                                  : Tokenizer::load(path);
  std::vector<Json> texts;
  for (std::string line; std::getline(std::cin, line);) texts.push_back(Json::parse(line));
  if (seconds > 0) {
    std::printf("%.9f\n", best_pass(tokenizer, texts, options, seconds));
    return 0;
  }
  for (const Json& text : texts) {
    const Encoding e = text.is_string() ? tokenizer.encode(text.as_string(), options)
                                        : tokenizer.encode_pair(text.at(std::size_t{0}).as_string(),
                                                                text.at(1).as_string(), options);
    Json offsets = Json::array();
    for (const auto& [begin, end] : e.offsets) offsets.push_back(Json::Array{begin, end});
    Json out(Json::Object{
        {"ids", numbers(e.ids)}, {"offsets", offsets}, {"type_ids", numbers(e.type_ids)}});
    if (decode) out["text"] = tokenizer.decode(e.ids);
    std::cout << out.dump() << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
