#include "layers.hpp"

#include <algorithm>
#include <cmath>

namespace train {
namespace {

constexpr float epsilon = 1e-5F;
constexpr float rotary_base = 10000;

/// c += a * b, number by number. Four rows of b at a time, so that c is read and written less often.
void add_rows(float* c, float const* a, std::size_t stride, float const* b, std::size_t rows, std::size_t columns) {
  std::size_t k = 0;
  for (; k + 4 <= rows; k += 4) {
    float const a0 = a[k * stride];
    float const a1 = a[(k + 1) * stride];
    float const a2 = a[(k + 2) * stride];
    float const a3 = a[(k + 3) * stride];
    float const* const b0 = b + k * columns;
    for (std::size_t j = 0; j < columns; ++j)
      c[j] += a0 * b0[j] + a1 * b0[columns + j] + a2 * b0[2 * columns + j] + a3 * b0[3 * columns + j];
  }
  for (; k < rows; ++k) {
    for (std::size_t j = 0; j < columns; ++j) c[j] += a[k * stride] * b[k * columns + j];
  }
}

float dot(float const* a, float const* b, std::size_t count) {
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

/// Rotates pairs of numbers; `direction` is 1 or -1.
void rotate_pairs(Gradient x, PassShape const& shape, float direction) {
  auto const half = shape.head / 2;
  for (std::size_t row = 0; row < shape.rows(); ++row) {
    auto const position = static_cast<float>(row % shape.length);
    for (std::size_t i = 0; i < half; ++i) {
      auto const turn = static_cast<float>(2 * i) / static_cast<float>(shape.head);
      auto const angle = position / std::pow(rotary_base, turn);
      auto const sine = direction * std::sin(angle);
      auto const cosine = std::cos(angle);
      for (std::size_t head = 0; head < shape.heads; ++head) {
        auto& a = x[row * shape.hidden() + head * shape.head + i];
        auto& b = x[row * shape.hidden() + head * shape.head + half + i];
        auto const before = a;
        a = before * cosine - b * sine;
        b = b * cosine + before * sine;
      }
    }
  }
}

/// Calls `visit(begin, pairs)` for each head of each sequence: its first number in q, k and v, and in the weights.
template <class Visit>
void for_each_head(PassShape const& shape, Visit const& visit) {
  for (std::size_t sequence = 0; sequence < shape.sequences; ++sequence) {
    for (std::size_t head = 0; head < shape.heads; ++head) {
      visit(sequence * shape.length * shape.hidden() + head * shape.head,
            (sequence * shape.heads + head) * shape.length * shape.length);
    }
  }
}

/// Turns scores into weights whose sum is 1.
void softmax(std::span<float> scores) {
  auto const largest = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  for (auto& score : scores) sum += score = std::exp(score - largest);
  for (auto& score : scores) score /= sum;
}

}  // namespace

Floats linear(Values x, Values weight, std::size_t in) {
  auto const out = weight.size() / in;
  auto const rows = x.size() / in;
  Floats transposed(weight.size());
  for (std::size_t o = 0; o < out; ++o) {
    for (std::size_t i = 0; i < in; ++i) transposed[i * out + o] = weight[o * in + i];
  }
  Floats y(rows * out);
  for (std::size_t row = 0; row < rows; ++row) add_rows(&y[row * out], &x[row * in], 1, transposed.data(), in, out);
  return y;
}

void linear_backward(Values dy, Values x, Values weight, std::size_t in, Gradient dx, Gradient dweight) {
  auto const out = weight.size() / in;
  auto const rows = x.size() / in;
  for (std::size_t row = 0; row < rows; ++row) add_rows(&dx[row * in], &dy[row * out], 1, weight.data(), out, in);
  for (std::size_t o = 0; o < out; ++o) add_rows(&dweight[o * in], &dy[o], out, x.data(), rows, in);
}

Floats rms_norm(Values x, Values weight) {
  auto const size = weight.size();
  Floats y(x.size());
  for (std::size_t at = 0; at < x.size(); at += size) {
    auto const mean = dot(&x[at], &x[at], size) / static_cast<float>(size);
    auto const scale = 1 / std::sqrt(mean + epsilon);
    for (std::size_t i = 0; i < size; ++i) y[at + i] = x[at + i] * scale * weight[i];
  }
  return y;
}

void rms_norm_backward(Values dy, Values x, Values weight, Gradient dx, Gradient dweight) {
  auto const size = weight.size();
  for (std::size_t at = 0; at < x.size(); at += size) {
    auto const mean = dot(&x[at], &x[at], size) / static_cast<float>(size);
    auto const scale = 1 / std::sqrt(mean + epsilon);
    float along = 0;  // the part of the gradient that would only change the length of the row
    for (std::size_t i = 0; i < size; ++i) along += dy[at + i] * weight[i] * x[at + i];
    along *= scale * scale / static_cast<float>(size);
    for (std::size_t i = 0; i < size; ++i) {
      dx[at + i] += scale * (dy[at + i] * weight[i] - x[at + i] * along);
      dweight[i] += dy[at + i] * x[at + i] * scale;
    }
  }
}

void rotate(Gradient x, PassShape const& shape) { rotate_pairs(x, shape, 1); }
void rotate_backward(Gradient dx, PassShape const& shape) { rotate_pairs(dx, shape, -1); }

Attention attention(Values q, Values k, Values v, PassShape const& shape) {
  Attention result{.output = Floats(q.size()),
                   .weights = Floats(shape.sequences * shape.heads * shape.length * shape.length)};
  auto const scale = 1 / std::sqrt(static_cast<float>(shape.head));
  for_each_head(shape, [&](std::size_t begin, std::size_t pairs) {
    for (std::size_t i = 0; i < shape.length; ++i) {
      auto const row = begin + i * shape.hidden();
      auto const weights = std::span(result.weights).subspan(pairs + i * shape.length, i + 1);
      for (std::size_t j = 0; j <= i; ++j)
        weights[j] = scale * dot(&q[row], &k[begin + j * shape.hidden()], shape.head);
      softmax(weights);
      for (std::size_t j = 0; j <= i; ++j) {
        for (std::size_t d = 0; d < shape.head; ++d)
          result.output[row + d] += weights[j] * v[begin + j * shape.hidden() + d];
      }
    }
  });
  return result;
}

void attention_backward(Values dy, Attention const& result, Values q, Values k, Values v, PassShape const& shape,
                        Gradient dq, Gradient dk, Gradient dv) {
  auto const scale = 1 / std::sqrt(static_cast<float>(shape.head));
  Floats dweights(shape.length);
  for_each_head(shape, [&](std::size_t begin, std::size_t pairs) {
    for (std::size_t i = 0; i < shape.length; ++i) {
      auto const row = begin + i * shape.hidden();
      float const* const weights = &result.weights[pairs + i * shape.length];
      float mean = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        dweights[j] = dot(&dy[row], &v[begin + j * shape.hidden()], shape.head);
        mean += weights[j] * dweights[j];
      }
      for (std::size_t j = 0; j <= i; ++j) {
        auto const other = begin + j * shape.hidden();
        auto const dscore = scale * weights[j] * (dweights[j] - mean);
        for (std::size_t d = 0; d < shape.head; ++d) {
          dv[other + d] += weights[j] * dy[row + d];
          dq[row + d] += dscore * k[other + d];
          dk[other + d] += dscore * q[row + d];
        }
      }
    }
  });
}

Floats gated(Values gate, Values up) {
  Floats y(gate.size());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
  return y;
}

void gated_backward(Values dy, Values gate, Values up, Gradient dgate, Gradient dup) {
  for (std::size_t i = 0; i < dy.size(); ++i) {
    auto const open = sigmoid(gate[i]);
    dup[i] += dy[i] * gate[i] * open;
    dgate[i] += dy[i] * up[i] * open * (1 + gate[i] * (1 - open));
  }
}

Loss cross_entropy(Values logits, std::span<int const> targets) {
  auto const rows = targets.size();
  auto const classes = logits.size() / rows;
  Loss loss{.gradient = Floats(logits.begin(), logits.end())};
  for (std::size_t row = 0; row < rows; ++row) {
    auto const weights = std::span(loss.gradient).subspan(row * classes, classes);
    softmax(weights);
    auto& right = weights[static_cast<std::size_t>(targets[row])];
    loss.value -= std::log(static_cast<double>(right)) / static_cast<double>(rows);
    right -= 1;
    for (auto& weight : weights) weight /= static_cast<float>(rows);
  }
  return loss;
}

}  // namespace train
