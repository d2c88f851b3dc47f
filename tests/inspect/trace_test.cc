// Traces, figures, slices, positions and the data flow.
#include "inspect/trace.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/json.h"
#include "inspect/model_view.h"
#include "inspect/slice.h"
#include "inspect_support.h"

using namespace qkv;
using namespace qkv::inspect;
using namespace qkv::testing;

TEST(Trace, rows_of_attention_sum_to_one_and_json_says_the_same) {
  const TinyClassifier tiny;
  const Trace trace = tiny.trace("where is my card");
  ASSERT_EQ(trace.layers(), 2);
  ASSERT_EQ(trace.heads(), 4);
  const Json json = Json::parse(trace_json(trace));
  EXPECT_EQ(json.at("layers").as_int(), 2);
  EXPECT_EQ(json.at("heads").as_int(), 4);
  EXPECT_EQ(json.at("tokens").size(), trace.tokens.size());
  EXPECT_EQ(json.at("figures").size(), 8u);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t head = 0; head < 4; ++head) {
      const Json& rows = json.at("attention").at(layer).at(head);
      ASSERT_EQ(rows.size(), trace.tokens.size());
      for (const Json& row : rows.as_array()) {
        ASSERT_EQ(row.size(), trace.tokens.size());
        double sum = 0;
        for (const Json& w : row.as_array()) sum += w.as_double();
        EXPECT_NEAR(sum, 1, 1e-5);
      }
    }
  }
  const float shown = static_cast<float>(json.at("attention").at(1).at(2).at(3).at(4).as_double());
  EXPECT_EQ(shown, trace.head(1, 2).select(0, 3).select(0, 4).data<float>()[0]);
}

TEST(Trace, capturing_changes_no_bit_of_the_answer) {
  const TinyClassifier tiny;
  const Trace kept = tiny.trace("where is my card");
  const Encoding encoding = tiny.tokenizer.encode("where is my card");
  const Trace bare = trace_text(tiny.model, encoding, "where is my card", {false, false});
  EXPECT_EQ(bare.label, kept.label);
  EXPECT_NEAR(bare.score, kept.score, 1e-6);
  EXPECT_TRUE(bare.attention.empty());
  EXPECT_TRUE(bare.activations.empty());
}

TEST(Trace, words_are_the_text_of_each_token) {
  const TinyClassifier tiny;
  const std::string text = "我的 card";
  const Trace trace = tiny.trace(text);
  std::string joined;
  for (const std::string& word : trace.words) joined += word;
  EXPECT_EQ(joined, text);
}

TEST(Trace, hidden_states_of_the_trace_are_those_of_the_model) {
  const TinyClassifier tiny;
  const Trace trace = tiny.trace("my card");
  std::vector<std::string> names;
  for (const auto& [name, value] : trace.activations) names.push_back(name);
  for (const char* name :
       {"embeddings", "encoder.layers.0.attention.qkv", "encoder.layers.1.feed_forward.hidden",
        "encoder.layers.1", "encoder", "pooled", "logits"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  EXPECT_EQ(trace.activations[0].second.shape(), Shape({trace.length(), 16}));
}

TEST(Trace, text_beyond_the_position_table_is_refused) {
  const TinyClassifier tiny;
  EXPECT_THROW(tiny.trace(std::string(200, 'a')), DataError);
}

namespace {
Tensor square(std::int64_t n, double (*weight)(std::int64_t i, std::int64_t j, std::int64_t n)) {
  Tensor t = Tensor::zeros({n, n});
  for (std::int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < n; ++j) sum += weight(i, j, n);
    for (std::int64_t j = 0; j < n; ++j)
      t.data<float>()[i * n + j] = static_cast<float>(weight(i, j, n) / sum);
  }
  return t;
}
using I = std::int64_t;
}  // namespace

TEST(HeadFigures, even_attention) {
  const HeadFigures f = head_figures(square(8, [](I, I, I) { return 1.0; }));
  EXPECT_NEAR(f.entropy, std::log(8.0), 1e-6);
  EXPECT_NEAR(f.entropy_share, 1, 1e-6);
  EXPECT_NEAR(f.mean_distance, 21.0 / 8, 1e-6);  // (n^2 - 1) / (3 n)
  EXPECT_NEAR(f.diagonal, 0.125, 1e-6);
  EXPECT_EQ(f.kind, "even");
}

TEST(HeadFigures, classes_follow_from_where_the_weight_is) {
  EXPECT_EQ(head_figures(square(12, [](I i, I j, I) { return i == j ? 1.0 : 0.0; })).kind,
            "diagonal");
  EXPECT_EQ(
      head_figures(square(12, [](I i, I j, I) { return j == std::max<I>(i - 1, 0) ? 1.0 : 0.0; }))
          .kind,
      "previous");
  EXPECT_EQ(head_figures(square(12, [](I i, I j,
                                       I n) { return j == std::min<I>(i + 1, n - 1) ? 1.0 : 0.0; }))
                .kind,
            "next");
  EXPECT_EQ(head_figures(square(12, [](I, I j, I) { return j == 0 ? 1.0 : 0.01; })).kind, "first");
  EXPECT_EQ(
      head_figures(square(12, [](I i, I j, I n) { return j == (5 * i + 4) % n ? 1.0 : 0.01; }))
          .kind,
      "sparse");
  EXPECT_EQ(head_figures(square(40, [](I i, I j, I) { return i / 5 == j / 5 ? 1.0 : 0.001; })).kind,
            "block");
  EXPECT_EQ(head_figures(square(12, [](I, I j, I) { return j % 2 == 0 ? 1.0 : 0.1; })).kind,
            "mixed");
}

TEST(HeadFigures, one_token_has_no_distance_and_no_neighbours) {
  const HeadFigures f = head_figures(square(1, [](I, I, I) { return 1.0; }));
  EXPECT_EQ(f.entropy, 0);
  EXPECT_EQ(f.mean_distance, 0);
  EXPECT_EQ(f.previous, 0);
  EXPECT_EQ(f.kind, "diagonal");
}

TEST(TensorFigures, count_what_is_not_finite_and_leave_it_out) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  const TensorFigures f = tensor_figures(Tensor::from<float>({1, 3, nan, inf, -inf, 5}, {2, 3}));
  EXPECT_EQ(f.count, 6);
  EXPECT_EQ(f.nan, 1);
  EXPECT_EQ(f.infinite, 2);
  EXPECT_DOUBLE_EQ(f.mean, 3);
  EXPECT_DOUBLE_EQ(f.deviation, std::sqrt(8.0 / 3));
  EXPECT_EQ(f.min, 1);
  EXPECT_EQ(f.max, 5);
  const TensorFigures none = tensor_figures(Tensor::from<float>({nan}, {1}));
  EXPECT_EQ(none.mean, 0);
  EXPECT_EQ(none.nan, 1);
}

TEST(Slice, takes_what_numpy_takes) {
  const Tensor t = Tensor::from<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {3, 4});
  const auto text = [&](const char* index) { return tensor_json(take_slice(t, index)).dump(); };
  EXPECT_EQ(text("0,:2"), "[0.0,1.0]");
  EXPECT_EQ(text("-1"), "[8.0,9.0,10.0,11.0]");
  EXPECT_EQ(text(":, 1"), "[1.0,5.0,9.0]");
  EXPECT_EQ(text("1,-2:"), "[6.0,7.0]");
  EXPECT_EQ(text("2,3"), "11.0");
  EXPECT_EQ(text("1:2"), "[[4.0,5.0,6.0,7.0]]");
  EXPECT_EQ(text("0,2:1"), "[]");
  EXPECT_EQ(text("5:9"), "[]");
  EXPECT_EQ(take_slice(t, "").shape(), t.shape());
  for (const char* bad : {"3", "-4", "0,0,0", "x", "1.5", "::2", ","})
    EXPECT_THROW(take_slice(t, bad), ArgumentError) << bad;
}

TEST(Slice, request_has_a_name_and_an_index) {
  EXPECT_EQ(parse_slice_request("a.b[0,:5]").name, "a.b");
  EXPECT_EQ(parse_slice_request("a.b[0,:5]").index, "0,:5");
  EXPECT_EQ(parse_slice_request("a.b").index, "");
  EXPECT_THROW(parse_slice_request("a.b[0"), ArgumentError);
  EXPECT_THROW(parse_slice_request("a.b[0][1]"), ArgumentError);
}

TEST(Slice, long_tensors_are_shortened_in_text_only) {
  const Tensor t = Tensor::zeros({2000});
  EXPECT_NE(tensor_text(t).find("..."), std::string::npos);
  EXPECT_EQ(tensor_json(t).size(), 2000u);
}

TEST(Positions, sinusoidal_differences_keep_their_norm_and_not_their_direction) {
  EncoderConfig config = traced_config();
  config.positions = PositionKind::kSinusoidal;
  config.d_model = 512;
  config.max_positions = 1006;
  const PositionReport report = position_report(EncoderClassifier(config, 1));
  ASSERT_EQ(report.steps.size(), 2u);
  EXPECT_NEAR(report.steps[0].norm, 11.5242, 1e-3);
  EXPECT_NEAR(report.steps[1].norm, 11.5242, 1e-3);
  EXPECT_NEAR(report.steps[0].product, 189.597, 1e-2);
  EXPECT_NEAR(report.steps[1].product, 189.597, 1e-2);
  ASSERT_TRUE(report.cosine.has_value());
  EXPECT_LT(*report.cosine, 0.9);
}

TEST(Positions, short_tables_and_models_without_positions_say_so) {
  const PositionReport learned = position_report(EncoderClassifier(traced_config(), 1));
  EXPECT_EQ(learned.kind, "learned");
  EXPECT_EQ(learned.steps.size(), 1u);
  EXPECT_TRUE(learned.to_json().at("cosine").is_null());
  EncoderConfig config = traced_config();
  config.positions = PositionKind::kNone;
  const PositionReport none = position_report(EncoderClassifier(config, 1));
  EXPECT_FALSE(none.codes.defined());
  EXPECT_TRUE(none.steps.empty());
}

TEST(DataFlow, shapes_are_those_of_the_run_and_every_weight_appears_once) {
  const TinyClassifier tiny;
  const Trace trace = tiny.trace("my card");
  std::size_t weights = 0, parameters = 0;
  bool has_weights = false;
  for (const GraphNode& node : data_flow(tiny.model, trace)) {
    weights += node.weights.size();
    if (node.name != "encoder.layers.1.attention.weights") continue;
    has_weights = true;
    EXPECT_EQ(node.shape, Shape({4, trace.length(), trace.length()}));
  }
  tiny.model.module().for_each([&](const nn::Parameter&) { ++parameters; });
  EXPECT_TRUE(has_weights);
  EXPECT_EQ(weights, parameters);
}
