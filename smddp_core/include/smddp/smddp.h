/* The collective library from C, and from every language that can call C.
 *
 * All functions that can fail return SMDDP_OK or the kind of the error; smddp_last_error() then has the text, for the
 * calling thread. After an error other than SMDDP_ERROR_USAGE the group is dead: every later operation returns the first
 * cause again, as smddp_check() does, and all that is left to do is smddp_destroy(). Arguments are looked at first, of a
 * dead group too: a wrong one (NULL for a buffer, a type or rank that does not exist, a size that no address space holds)
 * is SMDDP_ERROR_USAGE.
 *
 * A group's operations must be called by all ranks in the same order. Each blocks until this rank's part is done.
 * Results are the same bits on every rank. Calls on one group are serialised; smddp_abort(), smddp_check(),
 * smddp_stats() and smddp_flight_recorder() may be made from any thread at any time.
 */
#ifndef SMDDP_SMDDP_H
#define SMDDP_SMDDP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SMDDP_API __attribute__((visibility("default")))

typedef struct smddp_group smddp_group;

typedef enum smddp_status {
  SMDDP_OK = 0,
  SMDDP_ERROR_SYSTEM = 1,   /* the operating system refused something: memory, sockets, files */
  SMDDP_ERROR_TIMEOUT = 2,  /* a rank did not come in time; the text names it */
  SMDDP_ERROR_PEER = 3,     /* a rank's process ended or its host is cut off */
  SMDDP_ERROR_MISMATCH = 4, /* ranks called different operations, or with different types or sizes */
  SMDDP_ERROR_ABORTED = 5,  /* smddp_abort(), here or on another rank */
  SMDDP_ERROR_USAGE = 6     /* the call cannot be carried out; the group stays usable */
} smddp_status;

typedef enum smddp_dtype {
  SMDDP_FLOAT32 = 0,
  SMDDP_FLOAT64 = 1,
  SMDDP_FLOAT16 = 2,
  SMDDP_BFLOAT16 = 3,
  SMDDP_UINT8 = 4,
  SMDDP_INT8 = 5,
  SMDDP_INT16 = 6,
  SMDDP_INT32 = 7,
  SMDDP_INT64 = 8,
  SMDDP_COMPLEX64 = 10, /* pairs of float32; SUM and AVG only, as for COMPLEX128 */
  SMDDP_COMPLEX128 = 11
} smddp_dtype;

typedef enum smddp_reduce {
  SMDDP_SUM = 0,
  SMDDP_AVG = 1, /* the sum divided by the number of ranks; integers are truncated towards zero */
  SMDDP_PRODUCT = 2,
  SMDDP_MIN = 3,
  SMDDP_MAX = 4,
  SMDDP_BAND = 5, /* bitwise, for integers, as the two below */
  SMDDP_BOR = 6,
  SMDDP_BXOR = 7
} smddp_reduce;

/* Where ranks meet: a table of keys and values that all of them reach, used by smddp_create() only. Both functions
 * return 0, or another number for a failure. Keys begin with the group's name: a store serves several groups if each has
 * a name of its own, and a name again once its group has met. */
typedef struct smddp_store {
  void* context;

  /* Makes `bytes` bytes visible to all ranks under `key`, in place of what was there. Keys
   * hold letters, digits, '/' and the group's name. */
  int (*set)(void* context, const char* key, const void* value, size_t bytes);

  /* Waits for `key`, and hands its value to smddp_store_value(sink, ...). Returns 1 when it is not there after
   * `timeout_ms` milliseconds. */
  int (*get)(void* context, const char* key, int64_t timeout_ms, void* sink);
} smddp_store;

/* Called by smddp_store.get with the value that was found. Does nothing where `sink` is NULL, or `value` with more than
 * 0 bytes. */
SMDDP_API void smddp_store_value(void* sink, const void* value, size_t bytes);

typedef struct smddp_options {
  size_t struct_size; /* sizeof(smddp_options) */
  int rank;                    /* 0 to size - 1 */
  int size;                    /* 1 to 1048576; the same on all ranks */
  int64_t timeout_ms;          /* of operations that give none; 0: 30 minutes */
  const char* name;            /* the same on all ranks; for messages and keys of the store; NULL: "default" */
  const char* const* settings; /* "NAME=value" texts and a NULL, or NULL; the environment overrides them */
  smddp_store store;
} smddp_options;

/* Meets the other ranks. `*group` is NULL after an error. */
SMDDP_API smddp_status smddp_create(const smddp_options* options, smddp_group** group);

/* Leaves the group. NULL is allowed. */
SMDDP_API void smddp_destroy(smddp_group* group);

/* Operations. `timeout_ms` 0 stands for the group's. Buffers may be NULL where there is nothing to move. */

SMDDP_API smddp_status smddp_barrier(smddp_group* group, int64_t timeout_ms);

/* Copies the `bytes` bytes at rank `root`'s `data` to all others'. */
SMDDP_API smddp_status smddp_broadcast(smddp_group* group, void* data, size_t bytes, int root, int64_t timeout_ms);

/* out[i] = the reduction over all ranks of in[i]; `in` and `out` are the same or disjoint, `count` elements each. */
SMDDP_API smddp_status smddp_all_reduce(smddp_group* group, const void* in, void* out, size_t count, smddp_dtype dtype,
                                        smddp_reduce reduce, int64_t timeout_ms);

/* `out` takes the `bytes` bytes of each rank's `in`, in rank order. `in` is exactly this rank's part of `out`
 * (out + rank * bytes), or disjoint from all of `out`. */
SMDDP_API smddp_status smddp_all_gather(smddp_group* group, const void* in, void* out, size_t bytes,
                                        int64_t timeout_ms);

/* `in` has `count` elements for each rank, in rank order; `out` takes the reduction of this rank's. `out` is exactly
 * this rank's part of `in` (rank * count elements into it), which it then replaces, or disjoint from all of `in`. */
SMDDP_API smddp_status smddp_reduce_scatter(smddp_group* group, const void* in, void* out, size_t count,
                                            smddp_dtype dtype, smddp_reduce reduce, int64_t timeout_ms);

/* Wakes whatever waits, here and on the other ranks. The group is dead afterwards. */
SMDDP_API void smddp_abort(smddp_group* group, const char* reason);

/* What ended the group, or SMDDP_OK. */
SMDDP_API smddp_status smddp_check(smddp_group* group);

/* This rank, and how many there are; -1, with smddp_last_error(), for a group that is NULL. */
SMDDP_API int smddp_rank(const smddp_group* group);
SMDDP_API int smddp_size(const smddp_group* group);

/* How the group moves data, in words: "host (shared memory)", ... The text is the group's. NULL, with
 * smddp_last_error(), for a group that is NULL. */
SMDDP_API const char* smddp_path(const smddp_group* group);

/* Counters as a JSON object, the last operations as JSON lines. The text is the caller's: give it to smddp_free().
 * NULL, with smddp_last_error(), when there is no memory or `group` is NULL. */
SMDDP_API char* smddp_stats(const smddp_group* group);
SMDDP_API char* smddp_flight_recorder(const smddp_group* group);
SMDDP_API void smddp_free(char* text);

/* Text of the calling thread's last error; valid until its next one. */
SMDDP_API const char* smddp_last_error(void);

/* "0.1.0" */
SMDDP_API const char* smddp_version(void);

#ifdef __cplusplus
}
#endif

#endif
