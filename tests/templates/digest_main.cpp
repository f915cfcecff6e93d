// Prints the digest of every mode, one to a line, for comparison with other builds of the same
// text.
#include <cstdio>
#include <cstdlib>

#include "digest.h"

int main(int argc, char** argv) {
  const unsigned cases = argc > 1 ? unsigned(std::atoi(argv[1])) : 512;
  for (int mode = 0; mode < qt::kDigestModes; ++mode) {
    unsigned long long sum = 0;
    for (unsigned c = 0; c < cases; ++c) sum += qt::digest_case(mode, c);
    std::printf("%d %016llx\n", mode, sum);
  }
}
