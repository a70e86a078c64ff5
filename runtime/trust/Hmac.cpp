#include "runtime/trust/Hmac.h"

#include <cstdio>
#include <cstdlib>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

namespace merak::trust {
namespace {

const unsigned char *bytesOf(std::string_view text) {
  return reinterpret_cast<const unsigned char *>(text.data());
}

[[noreturn]] void broken(const char *what) {
  std::fprintf(stderr, "error: libcrypto has no %s\n", what);
  std::abort();
}

} // namespace

Digest sha256(std::string_view bytes) {
  Digest digest;
  if (!EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr,
                  EVP_sha256(), nullptr))
    broken("SHA-256");
  return digest;
}

Digest hmac(std::string_view key, std::string_view message) {
  Digest digest;
  unsigned length = 0;
  if (!HMAC(EVP_sha256(), key.data(), int(key.size()), bytesOf(message),
            message.size(), digest.data(), &length) ||
      length != kDigestBytes)
    broken("HMAC-SHA256");
  return digest;
}

bool same(const Digest &a, const Digest &b) {
  return CRYPTO_memcmp(a.data(), b.data(), kDigestBytes) == 0;
}

std::string randomBytes(size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char *>(bytes.data()), int(count)) !=
      1)
    broken("random bytes");
  return bytes;
}

std::string toHex(std::string_view bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

} // namespace merak::trust
