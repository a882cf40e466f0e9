#pragma once
#include <cstddef>
#include <span>
#include <vector>

/// The layers of a Llama, forward and backward, on matrices of floats in row-major order. Each backward function adds
/// to the gradients that it is given.
namespace train {

using Floats = std::vector<float>;
using Values = std::span<float const>;
using Gradient = std::span<float>;

/// Lengths of one pass.
struct PassShape {
  std::size_t sequences = 0;
  std::size_t length = 0;  ///< tokens in a sequence
  std::size_t heads = 0;
  std::size_t head = 0;  ///< numbers in a head

  [[nodiscard]] std::size_t rows() const noexcept { return sequences * length; }
  [[nodiscard]] std::size_t hidden() const noexcept { return heads * head; }
};

/// Returns x W^T for rows of `in` numbers and a weight [out, in].
[[nodiscard]] Floats linear(Values x, Values weight, std::size_t in);
void linear_backward(Values dy, Values x, Values weight, std::size_t in, Gradient dx, Gradient dweight);

/// Returns each row of x, divided by its root mean square and multiplied by the weight.
[[nodiscard]] Floats rms_norm(Values x, Values weight);
void rms_norm_backward(Values dy, Values x, Values weight, Gradient dx, Gradient dweight);

/// Rotates the two halves of each head by angles that grow with the position in the sequence.
void rotate(Gradient x, PassShape const& shape);
/// Rotates gradients back.
void rotate_backward(Gradient dx, PassShape const& shape);

/// The results of attention: its output, and the weights of all pairs of tokens for the backward pass.
struct Attention {
  Floats output{};
  Floats weights{};  ///< [sequences, heads, length, length]
};

/// Lets each token attend to itself and to the tokens before it.
[[nodiscard]] Attention attention(Values q, Values k, Values v, PassShape const& shape);
void attention_backward(Values dy, Attention const& result, Values q, Values k, Values v, PassShape const& shape,
                        Gradient dq, Gradient dk, Gradient dv);

/// Returns silu(gate) * up, element by element.
[[nodiscard]] Floats gated(Values gate, Values up);
void gated_backward(Values dy, Values gate, Values up, Gradient dgate, Gradient dup);

/// The mean loss of a pass, and its gradient.
struct Loss {
  double value = 0;
  Floats gradient{};  ///< like the logits
};

/// Returns the cross-entropy of rows of logits and the numbers of the right classes.
[[nodiscard]] Loss cross_entropy(Values logits, std::span<int const> targets);

}  // namespace train
