// Published encoders (models/families) as classifiers: for fine-tuning, and to use afterwards.
#include <utility>

#include "base/check.h"
#include "models/checkpoint.h"
#include "models/encoder_impl.h"
#include "models/families/family.h"

namespace qkv::inline v0 {
namespace {

void set_if(double& rate, const std::optional<double>& wanted) {
  if (wanted) rate = *wanted;
}

}  // namespace

EncoderConfig encoder_config(const TransformerConfig& t) {
  EncoderConfig c;
  c.d_model = t.d_model;
  c.num_layers = t.num_layers;
  c.num_heads = t.num_heads;
  c.num_kv_heads = t.num_kv_heads;
  c.d_ff = t.d_ff;
  c.max_positions = t.max_tokens();
  c.vocab_size = t.vocab_size;
  c.norm = t.norm.choice;
  c.norm_eps = t.norm.eps;
  c.norm_placement = t.placement;
  c.activation = t.activation;
  c.positions = t.positions;
  c.attention = t.attention;
  c.pooling = t.head.pooling;
  c.rope_base = t.rope.base;
  c.bias = t.qkv_bias;
  c.embedding_norm = t.embedding_norm;
  c.pooler = t.head.dense;
  c.attention_dropout = t.attention_dropout;
  c.hidden_dropout = t.hidden_dropout;
  c.activation_dropout = t.activation_dropout;
  c.embedding_dropout = t.embedding_dropout;
  c.labels = t.head.labels;
  return c;
}

bool EncoderClassifier::is_published(const std::filesystem::path& folder) {
  const Json config = read_json_file(folder / "config.json");
  if (!config.is_object() || !is_known_family(config)) return false;
  if (config.find(kBaseModelType) != nullptr) return true;
  try {
    return !EncoderConfig::from_json(config).is_bert();
  } catch (const ModelError&) {
    return true;  // a family's, but not the one form that is both
  }
}

PublishedEncoder EncoderClassifier::published(const std::filesystem::path& folder) {
  const Json json = read_json_file(folder / "config.json");
  const JsonReader reader(json);
  const Family& family = family_of(reader);
  TransformerConfig config = read_config(family, reader, head_of(family, reader));
  PublishedEncoder out{.max_tokens = config.max_tokens(), .labels = {}};
  if (config.head.kind == HeadKind::kSequence) out.labels = std::move(config.head.labels);
  return out;
}

EncoderClassifier EncoderClassifier::load_published(const std::filesystem::path& folder,
                                                    const LoadOptions& options) {
  Checkpoint checkpoint = load_checkpoint(folder, options);
  const TransformerConfig& config = checkpoint.model.config();
  require<ModelError>(config.head.kind == HeadKind::kSequence, "config.json",
                      "{}: expected a model that classifies sequences, got a head of kind {}; "
                      "fine-tune it first: qkv train with model.from",
                      folder.string(), head_kind_name(config.head.kind));
  EncoderConfig facade = encoder_config(config);
  return EncoderClassifier(std::unique_ptr<Impl>(
      new Impl{std::move(facade), std::move(checkpoint.model), std::move(checkpoint.config)}));
}

EncoderClassifier EncoderClassifier::fine_tune(const std::filesystem::path& folder,
                                               const FineTuneOptions& options) {
  LoadOptions load;
  load.head = HeadKind::kSequence;
  load.labels = options.labels;
  load.pooling = options.pooling;
  load.fresh_classifier = options.fresh_classifier;
  load.seed = options.seed;
  load.adjust = [&](TransformerConfig& config) {
    set_if(config.attention_dropout, options.attention_dropout);
    set_if(config.hidden_dropout, options.hidden_dropout);
    set_if(config.activation_dropout, options.activation_dropout);
    set_if(config.embedding_dropout, options.embedding_dropout);
    set_if(config.head.dropout, options.hidden_dropout);
  };
  return load_published(folder, load);
}

}  // namespace qkv::inline v0
