// The registry of rules. The order is that of docs/doctor.md: root causes before what follows from
// them.
#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "qkv/doctor.h"

#include "base/check.h"
#include "base/nearest.h"

namespace qkv::inline v0::doctor {

namespace {

constexpr Rule kRules[] = {
    {"exception", "the callable raises, or does not return in time",
     "A call ends in an exception, or does not end.",
     "Nothing can be said about a function that does not answer.",
     "Read the message in the evidence; call the function by hand with the shapes named there."},
    {"shape", "the output has another shape than the queries",
     "Downstream code reshapes in silence, or mixes heads with tokens.",
     "Attention gives one vector per query: [batch, heads, queries, head size]. Another order of "
     "the axes can pass unseen where two sizes are equal.",
     "Return the axes in the order of q; undo every transpose before returning."},
    {"non-finite", "NaN or infinity from finite inputs",
     "The loss is NaN after some steps, mostly on long or confident inputs.",
     "exp overflows beyond 88 in fp32 and 11 in fp16; one NaN poisons every weight through its "
     "gradient.",
     "Subtract the largest score of each row before exp, keep softmax in fp32, and look for "
     "divisions by sums that may be 0."},
    {"dropout-alive", "dropout acts at inference",
     "The same input gives other answers each time; metrics jitter and lie below those of "
     "training.",
     "At inference every weight counts: random zeros are noise, and the scaling by 1 / (1 - p) "
     "makes rows sum to anything but 1.",
     "Call eval(), or pass dropout_p = 0 unless training; functional dropout does not know the "
     "mode of the module."},
    {"nondeterminism", "equal calls give different results",
     "Runs cannot be repeated; a bug comes and goes.",
     "State left from an earlier call, memory that was never written, or a race between threads.",
     "Start from fresh buffers in each call, initialise memory, and sum in a fixed order."},
    {"rows-sum", "the weights of a row do not sum to 1",
     "Outputs shrink or grow with the length; the model learns slowly, or fails on other lengths "
     "than it saw.",
     "Attention is a weighted mean. Softmax over the wrong axis, phantom keys of padded tiles, "
     "masks after softmax and sums that are not divided out all break that.",
     "Take softmax over the last axis (keys), after all masks, and divide by the sum of exactly "
     "the visible terms."},
    {"batch-mates", "sequences or heads of a batch influence each other",
     "Results change with what else is in the batch.",
     "A sequence must not see its neighbours: answers would depend on strangers, and batched "
     "evaluation would differ from single calls.",
     "Look for a reshape without transpose, softmax or means over the batch or head axis, and "
     "masks taken from the first sequence."},
    {"normalised-qk", "queries or keys are normalised first",
     "Attention maps are flat; sharp heads never form.",
     "With vectors of length 1 the scores stay within one scale of 0, so that the softmax cannot "
     "become sharp unless a learned temperature makes up for it.",
     "Leave q and k as they are, or add the learned scale that QK-norm needs and state it."},
    {"scale", "scores are scaled by another factor than 1 / sqrt(head size)",
     "Training is slow or unstable, most of all for large heads and long texts; loading trained "
     "weights gives poor answers.",
     "Dot products of independent vectors grow with sqrt(head size). Without the factor the "
     "softmax saturates, with too small a factor it is flat, and trained weights expect the "
     "usual one.",
     "Multiply q k^T by 1 / sqrt(D) with D the size of one head, once. If another factor is "
     "meant, state it with scale=."},
    {"saturated", "rows are one-hot at ordinary inputs",
     "Each token looks at one other token only; gradients of q and k vanish.",
     "A saturated softmax passes next to no gradient and picks by noise.",
     "Look for a temperature near 0, an arg max in place of softmax, or scores that are scaled "
     "twice."},
    {"reference", "the result is not softmax(scale q k^T) v",
     "Results differ from every other implementation, and no other rule can say why.",
     "The definition in double precision, on the same inputs, gives something else by far more "
     "than rounding.",
     "Compare step by step with the worked example of masked attention: scores, weights, then "
     "output."},
    {"dtype-drift", "arithmetic is coarser than the inputs",
     "Small differences between implementations; training in mixed precision diverges late.",
     "Scores, softmax and sums in 16 bits lose three digits; the loss grows with the length.",
     "Keep softmax and accumulation in fp32 or better whatever the storage type."},
    {"mask-ignored", "the mask has no effect",
     "Padding is attended to; short texts get worse the longer the batch.",
     "A mask that does not reach the scores protects nothing.",
     "Pass it on to the softmax; check the branch that handles it and its broadcast."},
    {"mask-polarity", "the mask is read the wrong way round",
     "The model attends to padding only, or trains to nothing better than chance.",
     "Half of the libraries say true = may attend, the other half true = blocked. Swapped, all "
     "shapes still fit.",
     "Invert the mask at the border between the two conventions, and name variables keep or "
     "block."},
    {"mask-value", "masked scores become 0, or a finite stand-in for minus infinity",
     "Fine on short texts, worse on long or padded ones; leaks when scores are large.",
     "exp(0) = 1: a score of 0 keeps a middling weight. -10, -1e4 or -1e9 work until scores are "
     "as large, rows are blocked entirely, or two masks are added.",
     "Fill with -infinity (or skip the keys) before softmax, and give zeros for rows without "
     "keys."},
    {"mask-combination", "two masks do not intersect",
     "Padding is visible in causal models, or the future under a padding mask.",
     "A key is visible only if every mask allows it: boolean masks are joined by and, additive "
     "ones by a sum.",
     "Join keep masks with &, block masks with |, additive ones with +; never let one replace "
     "the other."},
    {"padding-leak", "the content of hidden tokens changes the result",
     "Answers depend on what stands in the padding.",
     "What is masked must have no influence at all.",
     "Exclude hidden keys before softmax, in every layer and in pooling; skip rather than "
     "multiply by 0."},
    {"padding-amount", "the amount of padding changes the result",
     "A text gets another answer alone than beside a longer one.",
     "Lengths of tensors are an accident of the batch; only real tokens may count.",
     "Count real tokens by the mask wherever a length, a mean or a position is needed."},
    {"empty-row", "a query without visible keys gives no zeros",
     "NaN after the first fully padded row; or padding is averaged in.",
     "The sum over no keys is 0. NaN there poisons all gradients, and the mean over hidden keys "
     "is a leak.",
     "Give zeros where no key is visible: where(any visible, softmax, 0)."},
    {"future-leak", "earlier positions see later tokens",
     "Training loss is far too good, generation is nonsense.",
     "A causal model is trained to predict what it can already read.",
     "Mask keys after the query before softmax: j <= i + S - N, without an offset."},
    {"causal-corner", "the causal triangle hangs at the wrong corner",
     "Decoding with a cache sees the first key only; or a token does not see itself.",
     "With fewer queries than keys, the queries are the last ones: query i sees keys j <= i + S "
     "- N, itself among them.",
     "Anchor the triangle to the last key: tril(diagonal = S - N)."},
    {"window-edge", "the window is off by one",
     "Two implementations of one model disagree once texts are longer than the window.",
     "A window of n is the query and its n - 1 predecessors.",
     "Keep keys with 0 <= i - j < n (causal), |i - j| < n (two-sided)."},
    {"head-groups", "query heads read the wrong key/value head",
     "A grouped model gives fluent nonsense; with equal heads all is well.",
     "Query head h belongs to key/value head h * Hkv / H: heads are grouped, not tiled.",
     "Use repeat_interleave (repeat each head), not repeat (tile all heads)."},
    {"order-blind", "the order of tokens does not matter",
     "Accuracy of a bag of words; dog bites man equals man bites dog.",
     "Attention without positions is a set operation.",
     "Add positions to the embeddings or rotate q and k, and check that they reach the model."},
    {"position-shift", "positions are shifted, cut off, or collide",
     "Long texts get worse than short ones; the last allowed length fails; left padding changes "
     "answers.",
     "Positions start at 0 for the first real token and must differ for all tokens that the "
     "model takes.",
     "Number positions from 0 by the mask, form angles in fp32, and make the table as long as "
     "the limit that is stated."},
    {"rope-pairing", "rotary positions are not those that were stated",
     "Trained weights give poor answers, and the worse the longer the text; short prompts look "
     "right.",
     "Rotations pair channel c with c + D / 2 in one layout and with c + 1 in the other; both give "
     "smooth numbers. With the wrong pairs, base or sign the scores are those of another model.",
     "Pair half-split in Hugging Face layout, interleaved in GGUF; rotate q and k both, by the "
     "same "
     "positions and the base of the configuration."},
    {"embedding-scale", "tokens and positions are of unequal size",
     "Learning is slow at first; the model cares for places and not for words, or the other way "
     "round.",
     "Tokens and positions are added: the larger one drowns the other. Embeddings that start at "
     "1 / sqrt(width) are meant to be multiplied by sqrt(width).",
     "Multiply the embeddings by sqrt(width), once, where positions are of size 1; else start both "
     "at one size."},
    {"heads-alike", "heads of a layer do the same",
     "Many heads are no better than one; all pictures of attention look alike.",
     "Heads that start equal get equal gradients and stay equal: the layer has one head's "
     "capacity.",
     "Look for weights that were copied or broadcast over heads, and initialise each at random."},
    {"cache", "a step with few queries differs from the full run",
     "Generated text drifts from what the model would say without a cache.",
     "Decoding is the same function: its rows must equal those of the full run.",
     "Compare each decode step with the full run; check the offset of mask and positions, and "
     "that the newest key is in the cache."},
    {"views", "strided views give other results than copies",
     "Right in tests, wrong after a transpose; or the caller's tensors change.",
     "A view has strides. Code that reads memory as if packed mixes heads with tokens; code that "
     "writes in place changes what the caller still needs.",
     "Honour the strides or make a packed copy; never scale inputs in place."},
    {"gradient", "the gradient is not that of the function",
     "Loss falls slowly or not at all; a model trains well in another framework only.",
     "Central differences of the same function give another directional derivative.",
     "Check the hand-written backward: the row sum that softmax subtracts, the scale on dq and "
     "dk, masked entries."},
    {"gradient-missing", "no gradient arrives at an input", "Some weights never move.",
     "A detach, a copy through NumPy or a no-grad block cuts the tape while the output still "
     "depends on the input.",
     "Remove the cut, or state that the function is for inference only."},
    {"quadratic-memory", "memory grows with the square of the length",
     "Long inputs run out of memory.", "The matrix of all scores is kept: N * S numbers per head.",
     "Use a fused kernel with an online softmax where long inputs matter."},
    {"config", "config.json cannot be read or contradicts itself", "The model does not load.",
     "Shapes follow from the configuration: a missing or impossible entry leaves them to "
     "guesses.",
     "Mend the entry that the evidence names."},
    {"file-missing", "a file of the model is not there",
     "The model does not load, or loads without its tokenizer.",
     "A model folder needs config.json, weights, and for text a tokenizer.",
     "Copy the missing file; an index names every shard that is needed."},
    {"file-damaged", "a file is cut off or not what its name says",
     "The model does not load; or loads garbage.",
     "The header's sizes must add up to the size of the file exactly.",
     "Download or copy the file again and compare sizes."},
    {"weights-missing", "a weight that the configuration asks for is not there",
     "The model starts from random values in that place.",
     "Loaders that fill in random weights give a model that works badly without a word.",
     "Save the full state; check prefixes and the name map."},
    {"weights-shape", "a weight has another shape than the configuration says",
     "Loading fails, or a transposed square matrix goes unseen.",
     "Configuration and weights are of different models, or an axis was swapped.",
     "Take both files from the same source."},
    {"weights-constant", "all values of a weight are equal",
     "A layer has no effect, or all its units do the same.",
     "A matrix of one value was never initialised, or was zeroed; its units stay equal under "
     "training.",
     "Load again or initialise at random."},
    {"vocabulary", "tokenizer and embedding do not fit",
     "An index error on rare words, or wrong rows for all words.",
     "Ids go straight into the embedding as row numbers.",
     "Take tokenizer and weights from the same source; resize the embedding after adding "
     "tokens."},
    {"positions-table", "the position table is not as long as the configuration says",
     "Long texts fail, or read beyond the table.",
     "The limit in the configuration is what callers trust.",
     "Set max_position_embeddings to the rows of the table."},
    {"kernel", "a kernel differs from the reference on this processor",
     "Answers differ between machines.",
     "Every fast kernel must equal the plain one up to rounding. A fault here is one of this "
     "library, the compiler, or the processor.",
     "Set QKV_MAX_ISA to a lower instruction set, and report the line."},
};

}  // namespace

std::span<const Rule> rules() { return kRules; }

const Rule& find_rule(const std::string& id) {
  const auto found = std::find_if(std::begin(kRules), std::end(kRules),
                                  [&](const Rule& rule) { return rule.id == id; });
  if (found != std::end(kRules)) return *found;
  std::vector<std::string> names;
  for (const Rule& rule : kRules) names.emplace_back(rule.id);
  const std::string nearest = nearest_name(id, names);
  fail<ArgumentError>("doctor", "expected the id of a rule, got '{}'{}", id,
                      nearest.empty() ? "" : "; did you mean " + nearest + "?");
}

}  // namespace qkv::inline v0::doctor
