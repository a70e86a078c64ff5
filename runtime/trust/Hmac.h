// Digests, keyed digests and random bytes. All of it is OpenSSL's libcrypto,
// which only this folder sees.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace merak::trust {

constexpr size_t kDigestBytes = 32;
using Digest = std::array<unsigned char, kDigestBytes>;

Digest sha256(std::string_view bytes);
// HMAC-SHA256 (RFC 2104).
Digest hmac(std::string_view key, std::string_view message);
// Takes equally long for all digests.
bool same(const Digest &a, const Digest &b);

// Bytes that nobody can guess; ends the process where there are none, as
// nothing may go on without.
std::string randomBytes(size_t count);

inline std::string_view view(const Digest &digest) {
  return {reinterpret_cast<const char *>(digest.data()), digest.size()};
}
// Two lower-case digits a byte.
std::string toHex(std::string_view bytes);

} // namespace merak::trust
