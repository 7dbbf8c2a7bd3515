// Soft caps of scores, for any vector type of attention_vec*.h that is made for f32.
#pragma once

namespace runahead {

// scores[i] = cap * tanh(scores[i] / cap) for i < count rounded up to whole vectors. A score is off by 2e-7 of `cap`.
template <class V>
void SoftCap(float* scores, int count, float cap) {
  constexpr float kMinusTwoLog2E = -2.88539008177793f;
  const auto to_exponent = V::Set1(kMinusTwoLog2E / cap), one = V::Set1(1.0f);
  for (int i = 0; i < count; i += V::kLanes) {
    const auto x = V::Load(scores + i);
    const auto e = V::Exp2(V::Mul(V::Abs(x), to_exponent));  // e^(-2|x|/cap)
    const auto tanh = V::Div(V::Sub(one, e), V::Add(one, e));
    V::Store(scores + i, V::CopySign(V::Mul(V::Set1(cap), tanh), x));
  }
}

}  // namespace runahead
