// Ctrl-C and termination as a flag that long work asks about.
#pragma once

namespace quarterturn {

/// Begins to watch SIGINT, SIGTERM and SIGHUP. A second signal ends the process at once; all that
/// was done is stored by then.
void watch_interrupts();
bool is_interrupted();

}  // namespace quarterturn
