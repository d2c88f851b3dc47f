// A short training run for experiments: plain AdamW with warm-up and cosine over batches of a fixed
// number of texts in random order. (qkv train is the real one; this one trains whatever forward
// function an experiment gives it.)
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "autograd/context.h"
#include "nn/module.h"
#include "text/dataset.h"

namespace qkv::inline v0::lab {

struct TrainingPlan {
  std::int64_t steps = 500, texts = 32;
  double learning_rate = 2e-3, warmup_share = 0.1, weight_decay = 0.05, label_smoothing = 0.1,
         clip_norm = 1;
  std::uint64_t seed = 1;
};

// Logits [B, V] of a batch, recorded on the context's tape.
using LogitsOf = std::function<Var(Context& context, const std::vector<const Sample*>& batch)>;

// Trains the parameters of `module`. Returns the mean loss of the last tenth of the steps.
double train_shortly(nn::Module& module, const std::vector<Sample>& samples, const LogitsOf& logits,
                     const TrainingPlan& plan);

}  // namespace qkv::inline v0::lab
