// merak-plant-finding overrun|overflow|abort|race: does what the sanitizer of
// this build must report; scripts/lib/sanitize.sh looks whether it would be
// told.
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

int main(int argc, char **argv) {
  const std::string plant = argc == 2 ? argv[1] : "";
  volatile int at = argc; // what is done cannot be known before
  int value = 0;
  if (plant == "overrun") {
    std::vector<char> bytes(2);
    char *volatile begin = bytes.data();
    begin[at] = 1;
  } else if (plant == "overflow") {
    value = INT_MAX - 1 + at;
  } else if (plant == "abort") {
    std::abort();
  } else if (plant == "race") {
    std::thread other([&] { value += at; });
    value += at;
    other.join();
  } else {
    std::fprintf(stderr,
                 "usage: merak-plant-finding overrun|overflow|abort|race\n");
    return 2;
  }
  std::printf("%d\n", value);
  return 0;
}
