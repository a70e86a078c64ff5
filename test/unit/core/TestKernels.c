// Generated kernels as the compiler would write them: 64 rows of 8 elements.
#include <stdint.h>
#include <string.h>

// out[i] = in[i] * scalar 0 (a double) + scalar 1 (an integer).
void merak_test_affine(void *const *operands, const int64_t *scalars,
                       int64_t begin, int64_t end) {
  const float *in = (const float *)operands[0];
  float *out = (float *)operands[1];
  double factor;
  memcpy(&factor, &scalars[0], sizeof(factor));
  for (int64_t i = begin * 8; i < end * 8; ++i)
    out[i] = in[i] * (float)factor + (float)scalars[1];
}
