// Decoding with a cache against the same model without one.
#include "infer/transformer_model.h"

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "qkv/threads.h"

#include "base/random.h"
#include "infer/beam_search.h"
#include "infer/generate.h"
#include "infer/score.h"
#include "support/errors.h"
#include "support/tensors.h"

using namespace qkv;
using namespace qkv::infer;
using namespace qkv::testing;

namespace {

using Ids = std::vector<std::int32_t>;

TransformerConfig gpt2_like() {
  TransformerConfig c;
  c.vocab_size = 31;
  c.d_model = 16;
  c.num_layers = 2;
  c.num_heads = c.num_kv_heads = 4;
  c.head_size = 4;
  c.d_ff = 24;
  c.max_positions = 512;
  c.positions = PositionKind::kLearned;
  c.causal = true;
  c.activation = ops::Activation::kGeluTanh;
  c.head.kind = HeadKind::kLm;
  c.head.bias = false;
  c.head.tied = true;
  return c;
}

TransformerConfig llama_like() {
  TransformerConfig c = gpt2_like();
  c.num_kv_heads = 2;
  c.head_size = 6;
  c.positions = PositionKind::kRope;
  c.norm = {NormChoice::kRms, 1e-6};
  c.qkv_bias = c.out_bias = c.feed_forward_bias = false;
  c.activation = ops::Activation::kSwiglu;
  c.head.tied = false;
  return c;
}

TransformerConfig windowed() {
  TransformerConfig c = llama_like();
  c.windows = {9, 0};
  c.head_norms = true;
  c.attention_softcap = 5;
  c.local_rope = ops::RopeOptions{.base = 100};
  return c;
}

struct Form {
  std::string name;
  TransformerConfig config;
};
// NOLINTNEXTLINE(readability-identifier-naming): the name that gtest looks for.
void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }

std::shared_ptr<const Transformer> make_model(const TransformerConfig& config) {
  auto model = std::make_shared<Transformer>(config, 3);
  // Larger than at the start of training, so that tokens and positions matter.
  model->module().for_each([](nn::Parameter& p) {
    if (p.var.value().rank() != 2) return;
    float* values = p.var.value().data<float>();
    for (std::int64_t i = 0; i < p.var.value().numel(); ++i)
      values[i] *= p.name.starts_with("embeddings") ? 40.0F : 2.0F;
  });
  return model;
}

Ids random_ids(std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  Ids ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>(random.below(31)));
  return ids;
}

// Logits of all tokens in one pass without a cache, by the plain attention.
Tensor reference(const TransformerConfig& config, const Transformer& fast, const Ids& ids) {
  TransformerConfig plain = config;
  plain.attention = AttentionKind::kNaive;
  Transformer model(plain, 3);
  model.module().for_each(
      [&](nn::Parameter& p) { p.var.value().copy_from(fast.module().find(p.name)->var.value()); });
  const std::vector<std::int64_t> lengths{static_cast<std::int64_t>(ids.size())};
  const RaggedLayout layout = RaggedLayout::from_lengths(lengths);
  Context context;
  context.layout = &layout;
  return model.logits(context, ids).value().clone();
}

Tensor appended(DecodingSession& session, std::int64_t stream, std::span<const std::int32_t> ids) {
  const StreamTokens part{stream, ids};
  return session.append({&part, 1}, LogitsOf::kAllTokens).clone();
}

class CachedDecoding : public ::testing::TestWithParam<Form> {};

}  // namespace

TEST_P(CachedDecoding, b16_chunks_equal_one_pass) {
  const auto model = make_model(GetParam().config);
  const auto lm = make_language_model(model);
  const Ids ids = random_ids(130, 1);
  const Tensor whole = reference(GetParam().config, *model, ids);
  for (const std::size_t chunk : {1U, 2U, 63U, 64U, 65U, 129U, 130U}) {
    const auto session = lm->start();
    const std::int64_t stream = session->open();
    for (std::size_t at = 0; at < ids.size(); at += chunk) {
      const auto part = std::span(ids).subspan(at, std::min(chunk, ids.size() - at));
      const Tensor logits = appended(*session, stream, part);
      ASSERT_LE(relative_difference(logits,
                                    whole.narrow(0, static_cast<std::int64_t>(at), logits.dim(0))),
                1e-5)
          << "chunk " << chunk << " at " << at;
    }
  }
}

TEST_P(CachedDecoding, b16_later_tokens_do_not_move_earlier_rows) {
  const auto lm = make_language_model(make_model(GetParam().config));
  Ids ids = random_ids(80, 2);
  const auto rows = [&] {
    const auto session = lm->start();
    const std::int64_t stream = session->open();
    appended(*session, stream, std::span(ids).first(70));
    return appended(*session, stream, std::span(ids).last(10));
  };
  const Tensor before = rows();
  ids[79] = (ids[79] + 1) % 31;
  const Tensor after = rows();
  EXPECT_TRUE(same_bits(before.narrow(0, 0, 9).contiguous(), after.narrow(0, 0, 9).contiguous()));
  EXPECT_GT(relative_difference(before.narrow(0, 9, 1), after.narrow(0, 9, 1)), 1e-3);
}

// A long history: the decoding kernel takes over, and windows drop keys.
TEST_P(CachedDecoding, long_histories) {
  const auto model = make_model(GetParam().config);
  const auto lm = make_language_model(model);
  const Ids ids = random_ids(400, 3);
  const Tensor whole = reference(GetParam().config, *model, ids);
  const auto session = lm->start();
  const std::int64_t stream = session->open();
  appended(*session, stream, std::span(ids).first(270));
  for (std::size_t t = 270; t < 400; ++t) {
    const Tensor logits = appended(*session, stream, std::span(ids).subspan(t, 1));
    ASSERT_LE(relative_difference(logits, whole.narrow(0, static_cast<std::int64_t>(t), 1)), 1e-5)
        << t;
  }
}

TEST_P(CachedDecoding, b15_and_b23_streams_of_other_lengths_change_nothing) {
  const auto model = make_model(GetParam().config);
  const auto lm = make_language_model(model);
  const std::vector<std::size_t> prompts{3, 5, 1, 40, 9};
  const auto run = [&](const std::vector<std::size_t>& rows, int threads) {
    const int usual = num_threads();
    set_num_threads(threads);
    const auto session = lm->start();
    std::vector<std::int64_t> streams;
    std::vector<Ids> texts;
    std::vector<StreamTokens> parts;
    for (const std::size_t row : rows) {
      texts.push_back(random_ids(static_cast<std::int64_t>(prompts[row]) + 4, 10 + row));
      streams.push_back(session->open());
    }
    std::vector<Tensor> steps;
    for (std::size_t step = 0; step < 5; ++step) {
      parts.clear();
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::size_t n = prompts[rows[i]];
        parts.push_back({streams[i], step == 0 ? std::span(texts[i]).first(n)
                                               : std::span(texts[i]).subspan(n + step - 1, 1)});
      }
      steps.push_back(session->append(parts, LogitsOf::kLastTokens).clone());
    }
    set_num_threads(usual);
    return steps;
  };
  const std::vector<Tensor> together = run({0, 1, 2, 3, 4}, 2);
  for (const int threads : {1, 4}) {
    const std::vector<Tensor> again = run({0, 1, 2, 3, 4}, threads);
    for (std::size_t step = 0; step < 5; ++step)
      EXPECT_TRUE(same_bits(again[step], together[step]));
  }
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    const std::vector<Tensor> alone = run({row}, 2);
    const Ids text = random_ids(static_cast<std::int64_t>(prompts[row]) + 4, 10 + row);
    const Tensor whole = reference(GetParam().config, *model, text);
    for (std::size_t step = 0; step < 5; ++step) {
      const Tensor mine = together[step].narrow(0, static_cast<std::int64_t>(row), 1);
      EXPECT_TRUE(same_bits(alone[step], mine.contiguous())) << row << " step " << step;
      EXPECT_LE(relative_difference(
                    mine, whole.narrow(0, static_cast<std::int64_t>(prompts[row] + step) - 1, 1)),
                1e-5);
    }
  }
}

TEST_P(CachedDecoding, b21_beams_take_their_cache_along) {
  const TransformerConfig& config = GetParam().config;
  const auto model = make_model(config);
  const auto lm = make_language_model(model);
  BeamOptions options;
  options.beams = options.results = 3;
  options.max_new_tokens = 8;
  options.end_ids = {7};
  const Ids prompt = random_ids(7, 5);
  for (const Hypothesis& h : beam_search(*lm, prompt, options)) {
    Ids all = prompt;
    all.insert(all.end(), h.ids.begin(), h.ids.end());
    if (h.ended) all.push_back(7);
    const Tensor whole = reference(config, *model, all);
    double sum = 0;
    for (std::size_t i = prompt.size(); i < all.size(); ++i) {
      const Tensor row = whole.select(0, static_cast<std::int64_t>(i) - 1);
      const std::span<const float> logits(row.data<float>(), 31);
      sum += static_cast<double>(logits[static_cast<std::size_t>(all[i])]) - log_sum_exp(logits);
    }
    EXPECT_NEAR(h.score, sum / static_cast<double>(all.size() - prompt.size()), 1e-4);
  }
}

TEST_P(CachedDecoding, b22_the_position_behind_the_context_is_never_looked_up) {
  TransformerConfig config = GetParam().config;
  config.max_positions = 16;
  const auto lm = make_language_model(make_model(config));
  GenerateOptions options;
  options.max_new_tokens = 10;
  const std::vector<Ids> fits{random_ids(15, 1)}, full{random_ids(16, 1)};
  const Generated last = generate(*lm, fits, options)[0];
  EXPECT_EQ(last.ids.size(), 1U);
  EXPECT_EQ(last.finish, FinishReason::kLength);
  EXPECT_THROW(generate(*lm, full, options), DataError);
  const auto session = lm->start();
  const std::int64_t stream = session->open();
  appended(*session, stream, full[0]);
  EXPECT_THROW(appended(*session, stream, std::span(full[0]).first(1)), DataError);
  EXPECT_EQ(session->length(stream), 16);
}

INSTANTIATE_TEST_SUITE_P(Forms, CachedDecoding,
                         ::testing::Values(Form{"gpt2_like", gpt2_like()},
                                           Form{"llama_like", llama_like()},
                                           Form{"windowed", windowed()}),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(TransformerModel, refuses_what_is_no_language_model) {
  TransformerConfig config = llama_like();
  config.causal = false;
  EXPECT_THROW(make_language_model(make_model(config)), ArgumentError);
  config = llama_like();
  config.head.kind = HeadKind::kNone;
  EXPECT_THROW(make_language_model(make_model(config)), ArgumentError);
  LanguageModel::Facts facts;
  facts.vocabulary = 32;
  EXPECT_THROW(make_language_model(make_model(llama_like()), facts), ArgumentError);
}

TEST(TransformerModel, a_failed_pass_leaves_the_stream_as_it_was) {
  const auto lm = make_language_model(make_model(llama_like()));
  const auto session = lm->start();
  const std::int64_t stream = session->open();
  const Ids ids = random_ids(5, 1), bad{3, 99};
  appended(*session, stream, ids);
  EXPECT_THROW(appended(*session, stream, bad), ArgumentError);
  EXPECT_EQ(session->length(stream), 5);
  const auto fresh = lm->start();
  const std::int64_t other = fresh->open();
  appended(*fresh, other, ids);
  EXPECT_TRUE(same_bits(appended(*session, stream, ids), appended(*fresh, other, ids)));
}
