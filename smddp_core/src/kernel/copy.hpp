// Copies into memory that another core reads next.
#pragma once

#include <cstddef>

namespace smddp {

/// How bytes are written into shared memory.
enum class Stores {
  cached,     ///< Through this core's caches; best where the reader shares a level of them.
  streaming,  ///< Past the caches (non-temporal stores), so that the reader need not fetch lines out of another core's
              ///< cache; best where the cores share none. The same as `cached` on processors other than x86.
};

/// Whether this processor has streaming stores.
bool can_stream();

/// memcpy with the given stores; null pointers are allowed for zero bytes. Written before any later store of this
/// thread.
void copy_with(Stores stores, void* to, const void* from, std::size_t bytes);

}  // namespace smddp
