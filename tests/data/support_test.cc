// The promises of data/support/README.md, checked on the committed files.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <gtest/gtest.h>

#include "text/dataset.h"

using namespace qkv;

namespace {

struct Line {
  std::string text, label, language, length, clause, setting;
};

// One column at a time, as the reader gives a text and one other.
std::vector<Line> read_lines(const std::string& name) {
  const std::string path = std::string(QKV_SOURCE_DIR) + "/data/support/" + name;
  std::vector<Line> lines;
  const std::pair<const char*, std::string Line::*> columns[] = {{"label", &Line::label},
                                                                 {"language", &Line::language},
                                                                 {"length", &Line::length},
                                                                 {"clause", &Line::clause},
                                                                 {"setting", &Line::setting}};
  for (const auto& [column, member] : columns) {
    TableOptions options;
    options.label = column;
    const std::vector<TextRow> rows = read_table(path, options);
    lines.resize(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      lines[i].text = rows[i].text;
      lines[i].*member = rows[i].label;
    }
  }
  return lines;
}

const std::vector<Line>& lines_of(const std::string& split) {
  static std::map<std::string, std::vector<Line>> read;
  auto it = read.find(split);
  if (it == read.end()) it = read.emplace(split, read_lines(split + ".tsv")).first;
  return it->second;
}

// Characters of valid UTF-8, each as its bytes.
std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> found;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) {
      found.back() += c;
    } else {
      found.emplace_back(1, c);
    }
  }
  return found;
}

bool is_letter(const std::string& character) {
  if (character.size() > 1) return character < "\xE3\x80\x80" || character > "\xE3\x80\x82";
  return std::isalpha(static_cast<unsigned char>(character[0])) != 0;
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> found{""};
  for (const char c : text) {
    if (std::isalpha(static_cast<unsigned char>(c))) {
      found.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!found.back().empty()) {
      found.emplace_back();
    }
  }
  if (found.back().empty()) found.pop_back();
  return found;
}

std::size_t spaces(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), ' '));
}

// Over 40 words, or over 60 characters of Chinese.
bool is_long(const Line& line) {
  return line.language == "zh" ? characters(line.text).size() > 60 : spaces(line.text) + 1 > 40;
}

std::string product(const Line& line) { return line.setting.substr(0, line.setting.find('|')); }
bool is_unseen(const Line& line) { return line.clause.find(".test_") != std::string::npos; }

constexpr std::size_t kGram = 4;

// Distinct 4-grams of characters, letters and digits in lower case.
std::vector<std::size_t> grams(const std::string& text) {
  std::vector<std::string> kept;
  for (std::string& c : characters(text)) {
    if (c.size() == 1) c[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(c[0])));
    if (is_letter(c) || c == " " ||
        (c.size() == 1 && std::isdigit(static_cast<unsigned char>(c[0]))))
      kept.push_back(c);
  }
  std::set<std::size_t> found;
  for (std::size_t i = 0; i + kGram <= kept.size(); ++i) {
    std::string gram;
    for (std::size_t j = 0; j < kGram; ++j) gram += kept[i + j];
    found.insert(std::hash<std::string>{}(gram));
  }
  return {found.begin(), found.end()};
}

// The largest Jaccard similarity of a line of `a` to a line of `b`.
double nearest_pair(const std::vector<Line>& a, const std::vector<Line>& b) {
  std::unordered_map<std::size_t, std::vector<std::int32_t>> postings;
  std::vector<std::size_t> sizes;
  for (const Line& line : a) {
    const auto found = grams(line.text);
    for (const std::size_t g : found)
      postings[g].push_back(static_cast<std::int32_t>(sizes.size()));
    sizes.push_back(found.size());
  }
  double largest = 0;
  std::vector<std::int32_t> shared(a.size());
  for (const Line& line : b) {
    std::fill(shared.begin(), shared.end(), 0);
    const auto found = grams(line.text);
    for (const std::size_t g : found) {
      const auto it = postings.find(g);
      if (it == postings.end()) continue;
      for (const std::int32_t i : it->second) ++shared[static_cast<std::size_t>(i)];
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double both = shared[i];
      largest = std::max(largest, both / (static_cast<double>(found.size() + sizes[i]) - both));
    }
  }
  return largest;
}

}  // namespace

TEST(SupportData, has_the_promised_numbers_of_lines_and_intents) {
  EXPECT_GE(lines_of("train").size(), 4000u);
  EXPECT_EQ(lines_of("validation").size(), 800u);
  EXPECT_EQ(lines_of("test").size(), 1200u);
  std::map<std::string, std::set<std::string>> labels;
  for (const char* split : {"train", "validation", "test"}) {
    for (const Line& line : lines_of(split)) labels[split].insert(line.label);
  }
  EXPECT_GE(labels["train"].size(), 24u);
  EXPECT_EQ(labels["train"], labels["validation"]);
  EXPECT_EQ(labels["train"], labels["test"]);
}

TEST(SupportData, languages_share_every_split_about_equally) {
  for (const char* split : {"train", "validation", "test"}) {
    double chinese = 0;
    for (const Line& line : lines_of(split)) chinese += line.language == "zh";
    EXPECT_NEAR(chinese / static_cast<double>(lines_of(split).size()), 0.5, 0.02) << split;
  }
}

TEST(SupportData, a_third_of_the_test_lines_is_long_and_training_has_long_lines) {
  std::map<std::string, int> count;
  for (const char* split : {"train", "validation", "test"}) {
    for (const Line& line : lines_of(split)) {
      EXPECT_EQ(is_long(line), line.length == "long") << line.text;
      count[split] += is_long(line);
    }
  }
  EXPECT_EQ(count["test"], 400);
  EXPECT_GE(count["train"], 500);
}

TEST(SupportData, clause_names_its_intent_and_language) {
  for (const char* split : {"train", "validation", "test"}) {
    for (const Line& line : lines_of(split))
      ASSERT_TRUE(line.clause.starts_with(line.label + "." + line.language + ".")) << line.clause;
  }
}

TEST(SupportData, no_pair_of_clause_and_product_crosses_from_training_to_test) {
  std::set<std::pair<std::string, std::string>> trained;
  for (const char* split : {"train", "validation"}) {
    for (const Line& line : lines_of(split)) trained.emplace(line.clause, product(line));
  }
  for (const Line& line : lines_of("test"))
    EXPECT_FALSE(trained.contains({line.clause, product(line)})) << line.text;
}

TEST(SupportData, a_third_of_the_test_lines_uses_wordings_that_training_lacks) {
  std::set<std::string> trained;
  for (const char* split : {"train", "validation"}) {
    for (const Line& line : lines_of(split)) {
      EXPECT_FALSE(is_unseen(line)) << line.clause;
      trained.insert(line.clause);
    }
  }
  std::size_t unseen = 0, unseen_long = 0;
  for (const Line& line : lines_of("test")) {
    unseen += !trained.contains(line.clause);
    unseen_long += !trained.contains(line.clause) && is_long(line);
  }
  EXPECT_GE(3 * unseen, lines_of("test").size());
  EXPECT_GE(unseen_long, 100u);
}

TEST(SupportData, every_word_of_the_test_lines_occurs_in_training) {
  std::set<std::string> english, chinese;
  for (const Line& line : lines_of("train")) {
    if (line.language == "zh") {
      for (const std::string& c : characters(line.text)) chinese.insert(c);
    } else {
      for (const std::string& w : words(line.text)) english.insert(w);
    }
  }
  for (const Line& line : lines_of("test")) {
    if (line.language == "zh") {
      for (const std::string& c : characters(line.text))
        EXPECT_TRUE(!is_letter(c) || chinese.contains(c)) << c << " in " << line.text;
    } else {
      for (const std::string& w : words(line.text)) EXPECT_TRUE(english.contains(w)) << w;
    }
  }
}

TEST(SupportData, no_line_is_there_twice) {
  std::unordered_set<std::string> seen;
  for (const char* split : {"train", "validation", "test"}) {
    for (const Line& line : lines_of(split))
      EXPECT_TRUE(seen.insert(line.text).second) << line.text;
  }
}

TEST(SupportData, no_near_duplicate_crosses_the_split) {
  EXPECT_LT(nearest_pair(lines_of("train"), lines_of("test")), 0.6);
  EXPECT_LT(nearest_pair(lines_of("validation"), lines_of("test")), 0.6);
  EXPECT_LT(nearest_pair(lines_of("train"), lines_of("validation")), 0.6);
}

TEST(SupportData, near_duplicates_are_seen_by_the_measure) {
  const std::vector<Line> a{
      {"I want to return the red kettle, please help me today.", "", "", "", "", ""}};
  const std::vector<Line> b{
      {"i want to return the red kettle please help me today!", "", "", "", "", ""}};
  const std::vector<Line> c{{"Where do I find the invoice for my printer?", "", "", "", "", ""}};
  EXPECT_DOUBLE_EQ(nearest_pair(a, b), 1);
  EXPECT_LT(nearest_pair(a, c), 0.1);
}
