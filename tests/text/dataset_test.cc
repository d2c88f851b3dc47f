#include "text/dataset.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "qkv/error.h"

#include "base/random.h"
#include "support/files.h"

namespace {
using namespace qkv;
using qkv::testing::TempFolder;

std::vector<TextRow> read(const std::string& name, const std::string& bytes,
                          const TableOptions& options = {}) {
  const TempFolder folder;
  return read_table(folder.write(name, bytes), options);
}

// The message without the folder's name; empty if the file is read.
std::string refusal(const std::string& name, const std::string& bytes,
                    const TableOptions& options = {}) {
  const TempFolder folder;
  const std::string path = folder.write(name, bytes).string();
  try {
    read_table(path, options);
  } catch (const DataError& error) {
    const std::string message = error.what();
    const std::size_t at = message.find(path);
    EXPECT_NE(at, std::string::npos) << message;
    return message.substr(0, at) + "F" + message.substr(at + path.size());
  }
  return "";
}

std::string shown(const std::vector<TextRow>& rows) {
  std::string out;
  for (const TextRow& row : rows)
    out += std::to_string(row.line) + "<" + row.text + "|" + row.label + ">";
  return out;
}

TEST(Table, reads_csv) {
  EXPECT_EQ(shown(read("a.csv", "text,label\nhello,x\nworld,y\n")), "2<hello|x>3<world|y>");
  EXPECT_EQ(shown(read("a.CSV", "label,more,text\r\nx,1,hello\r\ny,,world")),
            "2<hello|x>3<world|y>");
  EXPECT_EQ(shown(read("a.csv", "\xEF\xBB\xBFtext,label\n你好,x\n")), "2<你好|x>");
  EXPECT_EQ(shown(read("a.csv", "text,label\n\"a, b\",x\n\"say \"\"hi\"\"\",y\n\"\"\"\",z\n")),
            "2<a, b|x>3<say \"hi\"|y>4<\"|z>");
  EXPECT_EQ(shown(read("a.csv", "text,label\n\"two\nlines\",x\n\"three\r\nof\r\nthem\",y\nlast,z")),
            "2<two\nlines|x>4<three\r\nof\r\nthem|y>7<last|z>");
  EXPECT_EQ(shown(read("a.csv", "\"text\",\"label\"\r\n\"a\",\"x\"\r\n\r\n\"b\",\"y\"\r")),
            "2<a|x>4<b|y>");
  EXPECT_EQ(shown(read("a.csv", "text,label\n5\" screen,x\n")), "2<5\" screen|x>");
}

TEST(Table, refuses_bad_csv_with_file_and_line) {
  EXPECT_EQ(refusal("a.csv", ""), "[data] F:1: expected a header line and rows, got an empty file");
  EXPECT_EQ(refusal("a.csv", "\xEF\xBB\xBF"),
            "[data] F:1: expected a header line and rows, got an empty file");
  EXPECT_EQ(refusal("a.csv", "text,label\n"), "[data] F:1: expected at least one row, got none");
  EXPECT_EQ(refusal("a.csv", "txt,label\na,b\n"),
            "[data] F:1: expected a column 'text', got the columns 'txt', 'label'");
  EXPECT_EQ(refusal("a.csv", "text,intent\na,b\n"),
            "[data] F:1: expected a column 'label', got the columns 'text', 'intent'");
  EXPECT_EQ(refusal("a.csv", "text,text,label\na,b,c\n"),
            "[data] F:1: expected one column 'text', got two");
  EXPECT_EQ(refusal("a.csv", "text,label\na,x\nb\n"),
            "[data] F:3: expected 2 fields as in the header, got 1");
  EXPECT_EQ(refusal("a.csv", "text,label\n\"a\nb\",x\nc,d,e\n"),
            "[data] F:4: expected 2 fields as in the header, got 3");
  EXPECT_EQ(refusal("a.csv", "text,label\na,x\n\"b,y\nc,z\n"),
            "[data] F:3: expected a closing quote, got the end of the file");
  EXPECT_EQ(refusal("a.csv", "text,label\n\"a\"b,x\n"),
            "[data] F:2: expected a comma or the line's end after a closing quote, got 'b'");
  EXPECT_EQ(refusal("a.csv", "text,label\na,x\n\xFF,y\n"),
            "[data] F:3: expected UTF-8, got the byte 0xFF at position 15 of the file");
  EXPECT_EQ(refusal("a.csv", "text,label\n  ,x\n"),
            "[data] F:2: expected a text, got an empty one; remove the row or fill it in");
  EXPECT_EQ(refusal("a.csv", "text,label\na,\n"), "[data] F:2: expected a label, got an empty one");
  EXPECT_NE(refusal("a.xlsx", "text,label\na,x\n"), "");
}

TEST(Table, columns_and_labels_by_option) {
  TableOptions options;
  options.text = "utterance";
  options.label = "intent";
  EXPECT_EQ(shown(read("a.csv", "intent,utterance\nx,hello\n", options)), "2<hello|x>");
  options.need_label = false;
  EXPECT_EQ(shown(read("a.csv", "utterance\nhello\n", options)), "2<hello|>");
  EXPECT_EQ(shown(read("a.csv", "intent,utterance\n,hello\n", options)), "2<hello|>");
  options.allow_empty_text = true;
  EXPECT_EQ(shown(read("a.csv", "utterance\nhello\n\nworld\n", options)), "2<hello|>3<|>4<world|>");
}

TEST(Table, reads_tsv) {
  EXPECT_EQ(shown(read("a.tsv", "text\tlabel\r\n\"a\", b\tx\r\nc\ty")), "2<\"a\", b|x>3<c|y>");
  EXPECT_EQ(refusal("a.tsv", "text\tlabel\na\tx\ty\n"),
            "[data] F:2: expected 2 fields as in the header, got 3");
}

TEST(Table, reads_jsonl) {
  EXPECT_EQ(shown(read("a.jsonl",
                       "{\"text\":\"a\\nb\",\"label\":\"x\"}\n\n{\"label\":3,\"text\":\"c\"}\r\n")),
            "1<a\nb|x>3<c|3>");
  EXPECT_EQ(refusal("a.jsonl", "{\"text\":\"a\",\"label\":\"x\"}\n{\"text\":\"a\"}\n"),
            "[data] F:2: expected the key 'label', got the keys 'text'");
  EXPECT_EQ(refusal("a.jsonl", "{\"text\":1,\"label\":\"x\"}\n"),
            "[data] F:1: expected a text that is a string, got integer");
  EXPECT_EQ(refusal("a.jsonl", "{\"text\":\"a\",\"label\":1.5}\n"),
            "[data] F:1: expected a label that is a string or an integer, got number");
  EXPECT_EQ(refusal("a.jsonl", "[1]\n"), "[data] F:1: expected a JSON object, got array");
  EXPECT_NE(refusal("a.jsonl", "{\"text\":\"a\",\"label\":\"x\"}\n{\"text\":\n").find("F:2: "),
            std::string::npos);
  EXPECT_EQ(refusal("a.jsonl", "\n"), "[data] F:1: expected at least one row, got none");
}

TEST(Table, reads_txt) {
  TableOptions options;
  options.need_label = false;
  EXPECT_EQ(shown(read("a.txt", "one\r\ntwo, three\nfour", options)),
            "1<one|>2<two, three|>3<four|>");
  EXPECT_EQ(refusal("a.txt", "one\n\ntwo\n", options),
            "[data] F:2: expected a text, got an empty one; remove the row or fill it in");
  EXPECT_NE(refusal("a.txt", "one\n"), "");
}

TEST(Table, file_names_may_hold_blanks_and_chinese) {
  EXPECT_EQ(shown(read("训练 数据.csv", "text,label\na,x\n")), "2<a|x>");
  EXPECT_THROW(read_table("/no/such/file.csv", {}), IoError);
}

TEST(Table, reads_banking77) {
  QKV_SHARED_OR_SKIP(path, "data/banking77/train.csv");
  TableOptions options;
  options.label = "category";
  const std::vector<TextRow> rows = read_table(path, options);
  EXPECT_EQ(rows.size(), 10003u);
  std::set<std::string> labels;
  for (const TextRow& row : rows) labels.insert(row.label);
  EXPECT_EQ(labels.size(), 77u);
}

TEST(Batch, packs_samples) {
  const Sample a{{1, 2, 3}, 4, 10}, b{{}, 5, 11}, c{{6}, 7, 12};
  const TokenBatch batch = make_batch({&a, &b, &c});
  EXPECT_EQ(batch.ids, (std::vector<std::int32_t>{1, 2, 3, 6}));
  EXPECT_EQ(batch.labels, (std::vector<std::int32_t>{4, 5, 7}));
  EXPECT_EQ(batch.layout.starts, (std::vector<std::int32_t>{0, 3, 3, 4}));
  EXPECT_EQ(batch.layout.positions, (std::vector<std::int32_t>{0, 1, 2, 0}));
  EXPECT_EQ(batch.layout.samples, (std::vector<std::int64_t>{10, 11, 12}));
}

// Properties over many random cases: every sample once, the limit kept, deterministic, different
// every epoch.
TEST(Batch, plans_hold_every_sample_once_and_keep_the_limit) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> lengths(random.below(3000));
    for (std::int64_t& length : lengths)
      length = static_cast<std::int64_t>(random.below(1 + random.below(200)));
    BatchOptions options;
    options.batch_tokens = 1 + static_cast<std::int64_t>(random.below(600));
    options.padded_count = random.below(2) == 0;
    options.shuffle = random.below(4) != 0;
    options.seed = random.next_u64();
    const auto plan = plan_batches(lengths, round, options);
    EXPECT_EQ(plan, plan_batches(lengths, round, options));
    std::vector<std::int64_t> all;
    for (const std::vector<std::int64_t>& batch : plan) {
      ASSERT_FALSE(batch.empty());
      std::int64_t longest = 0, sum = 0;
      for (const std::int64_t i : batch) {
        longest = std::max(longest, lengths.at(static_cast<std::size_t>(i)));
        sum += lengths[static_cast<std::size_t>(i)];
      }
      const std::int64_t cost =
          options.padded_count ? longest * static_cast<std::int64_t>(batch.size()) : sum;
      EXPECT_TRUE(batch.size() == 1 || cost <= options.batch_tokens);
      all.insert(all.end(), batch.begin(), batch.end());
    }
    if (!options.shuffle) {
      EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
    }
    std::sort(all.begin(), all.end());
    std::vector<std::int64_t> expected(lengths.size());
    std::iota(expected.begin(), expected.end(), 0);
    ASSERT_EQ(all, expected);
  }
}

TEST(Batch, plans_differ_by_epoch_and_seed_and_waste_little) {
  Random random(3);
  std::vector<std::int64_t> lengths(5000);
  for (std::int64_t& length : lengths) length = 5 + static_cast<std::int64_t>(random.below(60));
  BatchOptions options;
  options.padded_count = true;
  const auto plan = plan_batches(lengths, 0, options);
  EXPECT_NE(plan, plan_batches(lengths, 1, options));
  options.seed = 1;
  EXPECT_NE(plan, plan_batches(lengths, 0, options));
  std::int64_t padded = 0;
  for (const auto& batch : plan) {
    std::int64_t longest = 0;
    for (const std::int64_t i : batch)
      longest = std::max(longest, lengths[static_cast<std::size_t>(i)]);
    padded += longest * static_cast<std::int64_t>(batch.size());
  }
  const std::int64_t real = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  EXPECT_LT(static_cast<double>(padded), 1.06 * static_cast<double>(real));
}

TEST(Batch, refuses_what_makes_no_sense) {
  BatchOptions options;
  options.batch_tokens = 0;
  EXPECT_THROW(plan_batches({1}, 0, options), ArgumentError);
  options.batch_tokens = 1;
  EXPECT_THROW(plan_batches({-1}, 0, options), ArgumentError);
  EXPECT_EQ(plan_batches({100}, 0, options).size(), 1u);
  EXPECT_TRUE(plan_batches({}, 0, options).empty());
}

TEST(Table, white_space_of_any_kind_is_no_text) {
  for (const char* blank : {"\u3000", "\u00a0", "\u2003\u2028", " \v\f"}) {
    EXPECT_TRUE(is_blank(blank));
    EXPECT_EQ(refusal("a.csv", std::string("text,label\n") + blank + ",x\n"),
              "[data] F:2: expected a text, got an empty one; remove the row or fill it in");
  }
  EXPECT_FALSE(is_blank("\u3000款"));
  EXPECT_TRUE(is_blank(""));
}

TEST(Table, messages_about_endless_headers_are_short) {
  std::string header;
  for (int i = 0; i < 100000; ++i) header += "column " + std::to_string(i) + ",";
  const std::string message = refusal("a.csv", header + std::string(1 << 20, 'x') + "\na\n");
  EXPECT_LT(message.size(), 600u);
  EXPECT_NE(message.find("'column 11' and 99989 more"), std::string::npos) << message;
}

}  // namespace
