// A small model in plain loops, with one switch per fault.
#pragma once

#include <vector>

#include "qkv/doctor.h"

namespace qkv::testing {

enum class ModelFault {
  kNone,
  kThrows,
  kWrongShape,
  kAllNaN,
  kNoise,
  kDropout,
  kBatchMean,
  kMaskIgnored,
  kMaskInverted,
  kMaskZeroFilled,
  kSecondLayerForgetsMask,
  kMeanOverPadding,
  kPositionsFromEnd,
  kFutureLeak,
  kNoPositions,
  kPositionsFromOne,
  kPositionsCutOff,
  kPositionsInBfloat16,
  kCacheShiftsPositions,
  kGradientCut,
  kEmbeddingTooSmall,
  kHeadsAlike,
  kRoundsToBfloat16
};

struct ModelMutant {
  ModelFault fault;
  const char* name;
  const char* id;
  bool causal = false;
};

const std::vector<ModelMutant>& model_mutants();
doctor::ModelUnderTest make_model(const ModelMutant& mutant, bool healthy = false);

}  // namespace qkv::testing
