// The .bin files of llama2.c: seven numbers, then fp32 arrays in a fixed order.
#include <array>
#include <string>

#include <fmt/format.h>

#include "base/check.h"
#include "io/byte_reader.h"
#include "io/mapped_tensor.h"
#include "io/weight_impl.h"

namespace qkv::inline v0::io {
namespace {

constexpr std::uint32_t kLaterMagic = 0x616b3432;  // "24ka": versions 1 and 2

struct Header {
  std::int64_t width = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, vocab = 0, length = 0;
  bool tied = true;
  std::int64_t head_dim() const { return heads > 0 ? width / heads : 0; }
};

Header take_header(ByteReader& reader) {
  Header header;
  for (std::int64_t* field : {&header.width, &header.hidden, &header.layers, &header.heads,
                              &header.kv_heads, &header.vocab, &header.length}) {
    const auto value = reader.take<std::int32_t>("the header");
    require<UnsupportedError>(
        field != &header.width || static_cast<std::uint32_t>(value) != kLaterMagic, "llama2.c",
        "expected a file of version 0, got a later one; write it "
        "with llama2.c's export.py --version 0");
    *field = value;
  }
  header.tied = header.vocab > 0;  // a negative size: the output has weights of its own
  header.vocab = header.tied ? header.vocab : -header.vocab;
  constexpr std::int64_t kMost = 1 << 24;
  for (const std::int64_t value : {header.width, header.hidden, header.layers, header.heads,
                                   header.kv_heads, header.vocab, header.length})
    require<DataError>(value >= 1 && value <= kMost, "llama2.c",
                       "expected a header of numbers from 1 to {}, got {}", kMost, value);
  require<DataError>(header.head_dim() * header.heads == header.width &&
                         header.head_dim() % 2 == 0 && header.kv_heads > 0 &&
                         header.heads % header.kv_heads == 0,
                     "llama2.c",
                     "expected a width of whole heads of even size and whole groups of heads, got "
                     "width {}, {} heads, {} key/value heads",
                     header.width, header.heads, header.kv_heads);
  return header;
}

Json config_of(const Header& header) {
  Json config = Json::object();
  config["architectures"] = Json::Array{"LlamaForCausalLM"};
  config["model_type"] = "llama";
  config["vocab_size"] = header.vocab;
  config["hidden_size"] = header.width;
  config["intermediate_size"] = header.hidden;
  config["num_hidden_layers"] = header.layers;
  config["num_attention_heads"] = header.heads;
  config["num_key_value_heads"] = header.kv_heads;
  config["head_dim"] = header.head_dim();
  config["max_position_embeddings"] = header.length;
  config["rms_norm_eps"] = 1e-5;
  config["rope_theta"] = 10000.0;
  config["hidden_act"] = "silu";
  config["tie_word_embeddings"] = header.tied;
  config["bos_token_id"] = 1;
  config["eos_token_id"] = 2;
  return config;
}

// Adds arrays in the order of the file.
class Arrays {
 public:
  Arrays(std::shared_ptr<const MappedFile> file, ByteReader& reader, std::string name,
         WeightFiles::Impl& weights)
      : file_(std::move(file)), reader_(reader), name_(std::move(name)), weights_(weights) {}

  void add(const std::string& name, const Shape& shape, std::int64_t rotary_heads = 0) {
    const std::uint64_t begin = skip(shape);
    WeightEntry entry;
    entry.shape = shape;
    entry.file = name_;
    entry.dense = mapped_tensor(file_, begin, shape, DType::kFloat32);
    entry.heads = rotary_heads;
    if (rotary_heads > 0) entry.change = WeightChange::kHalfSplit;
    weights_.add(name, std::move(entry));
  }
  void add_layers(const std::string& name, const Header& header, const Shape& shape,
                  std::int64_t rotary_heads = 0) {
    for (std::int64_t i = 0; i < header.layers; ++i)
      add(fmt::format("model.layers.{}.{}.weight", i, name), shape, rotary_heads);
  }
  std::uint64_t skip(const Shape& shape) {  // the extents are small enough for any two of them
    const std::uint64_t begin = reader_.position();
    reader_.skip(static_cast<std::uint64_t>(shape.numel()) * sizeof(float), "weights");
    return begin;
  }

 private:
  std::shared_ptr<const MappedFile> file_;
  ByteReader& reader_;
  std::string name_;
  WeightFiles::Impl& weights_;
};

void read_arrays(const std::shared_ptr<const MappedFile>& file, const std::string& name,
                 WeightFiles::Impl& weights) {
  ByteReader reader(file->data(), file->size(), "llama2.c");
  const Header h = take_header(reader);
  // Each array is at least one number: a claim of many layers ends here, not in a long loop.
  require<DataError>(static_cast<std::uint64_t>(h.layers) * static_cast<std::uint64_t>(h.width) <=
                         reader.left() / sizeof(float),
                     "llama2.c", "expected {} layers of width {}, got {} bytes of weights",
                     h.layers, h.width, reader.left());
  const std::int64_t kv_width = h.kv_heads * h.head_dim();
  Arrays arrays(file, reader, name, weights);
  arrays.add("model.embed_tokens.weight", {h.vocab, h.width});
  arrays.add_layers("input_layernorm", h, {h.width});
  arrays.add_layers("self_attn.q_proj", h, {h.width, h.width}, h.heads);
  arrays.add_layers("self_attn.k_proj", h, {kv_width, h.width}, h.kv_heads);
  arrays.add_layers("self_attn.v_proj", h, {kv_width, h.width});
  arrays.add_layers("self_attn.o_proj", h, {h.width, h.width});
  arrays.add_layers("post_attention_layernorm", h, {h.width});
  arrays.add_layers("mlp.gate_proj", h, {h.hidden, h.width});
  arrays.add_layers("mlp.down_proj", h, {h.width, h.hidden});
  arrays.add_layers("mlp.up_proj", h, {h.hidden, h.width});
  arrays.add("model.norm.weight", {h.width});
  arrays.skip({h.length, h.head_dim()});  // cosines and sines, which are computed here
  if (!h.tied) arrays.add("lm_head.weight", {h.vocab, h.width});
  require<DataError>(reader.left() == 0, "llama2.c",
                     "expected weights for the sizes in the header, got {} bytes more",
                     reader.left());
  weights.config = config_of(h);
}

}  // namespace

void read_llama2c_weights(const std::filesystem::path& path, WeightFiles::Impl& weights) {
  weights.format = WeightFormat::kLlama2c;
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  try {
    read_arrays(file, path.filename().string(), weights);
  } catch (const DataError& error) {
    fail<ModelError>("llama2.c", "'{}': {}; is it a .bin file of llama2.c?", path.string(),
                     error_reason(error));
  }
}

}  // namespace qkv::inline v0::io
