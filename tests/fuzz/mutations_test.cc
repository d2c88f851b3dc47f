// A small fuzzer that always does the same: seeded mutations of the corpora. The libFuzzer programs
// go further.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/random.h"
#include "support/files.h"
#include "support/fuzz_targets.h"

namespace {
using namespace qkv;
namespace fs = std::filesystem;

std::vector<std::string> corpus_of(const std::string& name) {
  std::vector<std::string> inputs;
  const fs::path folder = fs::path(QKV_SOURCE_DIR) / "tests/fuzz/corpus" / name;
  for (const std::string& file : qkv::testing::list_folder(folder))
    inputs.push_back(read_file(folder / file));
  return inputs;
}

// Words that matter to the parsers.
constexpr const char* kWords[] = {"\"",
                                  "\"\"",
                                  "\\",
                                  "{",
                                  "}",
                                  "[",
                                  "]",
                                  ",",
                                  ":",
                                  "\n",
                                  "\r\n",
                                  "\t",
                                  "null",
                                  "-1",
                                  "0",
                                  "1e999",
                                  "1e3",
                                  "9223372036854775807",
                                  "18446744073709551615",
                                  "\xFF",
                                  "\xED\xA0\x80",
                                  "\xEF\xBB\xBF",
                                  "é",
                                  "红",
                                  "😀",
                                  "##",
                                  "[MASK]",
                                  "\\u0000",
                                  "\\ud800"};

void mutate(std::string& input, const std::vector<std::string>& corpus, Random& random) {
  const auto place = [&](std::size_t size) {
    return static_cast<std::size_t>(random.below(size + 1));
  };
  const std::size_t at = place(input.size());
  switch (random.below(7)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << random.below(8)));
      break;
    case 1:
      if (at < input.size()) input[at] = static_cast<char>(random.below(256));
      break;
    case 2:
      input.resize(at);
      break;
    case 3:
      input.erase(at, random.below(16));
      break;
    case 4:
      input.insert(at, kWords[random.below(std::size(kWords))]);
      break;
    case 5: {  // a part of itself once more
      const std::string part = input.substr(place(input.size()), random.below(64));
      input.insert(at, part);
      break;
    }
    default: {  // continue as another input
      const std::string& other = corpus[random.below(corpus.size())];
      input = input.substr(0, at) + other.substr(place(other.size()));
    }
  }
}

class Mutations : public ::testing::TestWithParam<qkv::testing::FuzzTarget> {};

TEST_P(Mutations, end_in_a_result_or_a_typed_error) {
  const std::vector<std::string> corpus = corpus_of(GetParam().name);
  ASSERT_FALSE(corpus.empty());
  for (const std::string& input : corpus) GetParam().run(input);
  Random random(2024);
  for (int round = 0; round < 3000; ++round) {
    std::string input = corpus[random.below(corpus.size())];
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n) mutate(input, corpus, random);
    try {
      GetParam().run(input);
    } catch (const std::exception& error) {
      FAIL() << error.what() << " in round " << round << "; input of " << input.size()
             << " bytes:\n"
             << input;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Mutations,
                         ::testing::ValuesIn(qkv::testing::fuzz_targets().begin(),
                                             qkv::testing::fuzz_targets().end()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
