/// Roles: what a parameter is in its network. Plans and gradient clipping ask for it.
#pragma once

#include "evenkeel/device.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <string>

namespace evenkeel {

/// What a parameter is.
enum class Role {
  embedding,   ///< tokens
  positional,  ///< learned positions
  query,       ///< of self- and cross-attention alike, as key, value and attention_output
  key,
  value,
  attention_output,  ///< writes into the residual stream
  ffn_gate,          ///< of gated feed-forward networks, beside ffn_up
  ffn_up,
  ffn_down,      ///< writes into the residual stream
  head,          ///< logits of a language model
  stem,          ///< what comes before the first residual block
  branch_layer,  ///< layer k of m in a residual branch, see ek::branch_layer
  shortcut,      ///< projection beside a branch
  classifier,    ///< the last layer
  bias,          ///< of any linear or convolution layer
  norm_weight,
  norm_bias,
  scalar_bias,  ///< Fixup's, one number before each layer and each activation
  branch_scale  ///< a learned scale of a branch: Fixup's, ReZero's and SkipInit's number, LayerScale's vector
};

/// The two halves of a network that reads one sequence and writes another.
enum class Stack { encoder, decoder };

/// A role, and where in the network: in which stack, which layer of a branch. A Role converts to it.
struct RoleOf {
  Role role;
  std::optional<Stack> stack = {};
  Index layer = 0;  ///< of a branch_layer, from 1

  constexpr RoleOf(Role of) : role(of) {}  // NOLINT(google-explicit-constructor): a role alone will do
  constexpr RoleOf(Role of, Stack in) : role(of), stack(in) {}
};

/// The role in one stack of a network that has both: `plan.std(ek::encoder(ek::Role::value), fans)`.
constexpr RoleOf encoder(Role role) { return {role, Stack::encoder}; }
constexpr RoleOf decoder(Role role) { return {role, Stack::decoder}; }

/// Weight layer `layer` of a residual branch, counted from 1.
constexpr RoleOf branch_layer(Index layer) {
  RoleOf role(Role::branch_layer);
  role.layer = layer;
  return role;
}

/// The role's name in messages and tables.
constexpr const char* role_name(Role role) {
  constexpr std::array names{"embedding",   "positional", "query",    "key",         "value",     "attention_output",
                             "ffn_gate",    "ffn_up",     "ffn_down", "head",        "stem",      "branch_layer",
                             "shortcut",    "classifier", "bias",     "norm_weight", "norm_bias", "scalar_bias",
                             "branch_scale"};
  static_assert(names.size() == static_cast<std::size_t>(Role::branch_scale) + 1);
  return names[static_cast<std::size_t>(role)];
}

/// "encoder value", "branch_layer 2", "bias".
inline std::string role_text(const RoleOf& of) {
  std::string text;
  if (of.stack) text = *of.stack == Stack::encoder ? "encoder " : "decoder ";
  text += role_name(of.role);
  // " " + to_string(...) is a false alarm of g++ 12's -Wrestrict where a program inlines it.
  if (of.layer != 0) text.append(" ").append(std::to_string(of.layer));
  return text;
}

/// Whether the role is what weight decay leaves alone in every recipe: biases, norms, scales.
constexpr bool never_decayed(Role role) {
  return role == Role::bias || role == Role::norm_weight || role == Role::norm_bias || role == Role::scalar_bias ||
         role == Role::branch_scale;
}

}  // namespace evenkeel
