// A decoder of models/transformer.h as a LanguageModel.
#pragma once

#include <memory>

#include "infer/language_model.h"
#include "models/transformer.h"

namespace qkv::inline v0::infer {

// model: causal, with the head kLm (ArgumentError otherwise); its weights stay as they are.
// facts: vocabulary and context 0 or absent are the model's; ArgumentError for a vocabulary larger
// than the model's.
std::unique_ptr<LanguageModel> make_language_model(std::shared_ptr<const Transformer> model,
                                                   LanguageModel::Facts facts = {});

}  // namespace qkv::inline v0::infer
