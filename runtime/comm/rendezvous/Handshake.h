// How a rank and rank 0 show each other that both know the run's token, which
// itself is never sent (private to this folder):
//
//   rank 0 -> rank   Challenge: a nonce
//   rank -> rank 0   Hello: who it is, a nonce, a proof over both
//   rank 0 -> rank   a frame, Welcome or Refuse, with rank 0's proof in front
//                    of its value; Refuse without one: the proof was none
//
// All before the last has a fixed length, so that nothing is kept of what a
// stranger sends but the bytes of one Hello.
#pragma once

#include "runtime/comm/rendezvous/Wire.h"

#include <array>
#include <string_view>

namespace merak::runtime {

constexpr size_t kNonceBytes = 32, kHostBytes = 64, kMarkBytes = 8;
constexpr size_t kChallengeBytes = kMarkBytes + kNonceBytes;
constexpr size_t kHelloBytes =
    kMarkBytes + 8 + 8 + kHostBytes + kNonceBytes + 32;
// No Welcome or Refuse is longer.
constexpr size_t kVerdictBytes = 4096;

struct Hello {
  int64_t rank = 0, size = 1;
  std::string host, nonce; // of the rank
};

std::string encodeChallenge(const std::string &nonce);
// The nonce; none if the bytes, of which there are kChallengeBytes, are no
// challenge of this version.
std::optional<std::string> decodeChallenge(std::string_view bytes);

// `challenge`: the nonce of rank 0.
std::string encodeHello(const Hello &hello, const std::string &challenge,
                        const std::string &token);
// None if the bytes are no Hello; `proven`: the token is the same.
std::optional<Hello> decodeHello(std::string_view bytes,
                                 const std::string &challenge,
                                 const std::string &token, bool &proven);

// Rank 0's proof in front of the value of its verdict.
Frame proven(Frame verdict, const Hello &hello, const std::string &challenge,
             const std::string &token);
// Takes the proof off again; false if it is none.
bool checkProof(Frame &verdict, const Hello &hello,
                const std::string &challenge, const std::string &token);

} // namespace merak::runtime
