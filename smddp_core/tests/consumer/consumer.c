/* A rank of a group, in C: consumer RANK SIZE FOLDER [KEY]. Ranks meet through files in FOLDER; one that is given KEY dies
 * when it should set a key with that text. */
#define _POSIX_C_SOURCE 200809L
#include <ctype.h>
#include <limits.h>
#include <signal.h>
#include <smddp/smddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void path_of(const char* folder, const char* key, char* path, size_t bytes) {
  size_t at = (size_t)snprintf(path, bytes, "%s/", folder);
  for (; *key && at + 1 < bytes; ++key) path[at++] = *key == '/' ? '.' : *key;
  path[at] = '\0';
}

static const char* last_key = NULL;

/* Under another name first: a reader must never find half a value. */
static int set(void* context, const char* key, const void* value, size_t bytes) {
  char path[512];
  char temporary[520];
  for (const char* c = key; *c; ++c)
    if (!isalnum((unsigned char)*c) && *c != '/') return -2;
  if (last_key && strstr(key, last_key)) raise(SIGKILL);
  path_of(context, key, path, sizeof(path));
  snprintf(temporary, sizeof(temporary), "%s.new", path);
  FILE* file = fopen(temporary, "wb");
  if (!file) return -1;
  const int whole = fwrite(value, 1, bytes, file) == bytes;
  if (fclose(file) != 0 || !whole) return -1;
  return rename(temporary, path) == 0 ? 0 : -1;
}

/* NULL when it is not there in time. */
static FILE* await(const char* folder, const char* key, int64_t timeout_ms) {
  const struct timespec nap = {0, 5 * 1000 * 1000};
  char path[512];
  path_of(folder, key, path, sizeof(path));
  for (int64_t waited = 0; waited <= timeout_ms; waited += 5) {
    FILE* file = fopen(path, "rb");
    if (file) return file;
    nanosleep(&nap, NULL);
  }
  return NULL;
}

static int get(void* context, const char* key, int64_t timeout_ms, void* sink) {
  static char value[1 << 20];
  FILE* file = await(context, key, timeout_ms);
  if (!file) return 1;
  const size_t bytes = fread(value, 1, sizeof(value), file);
  fclose(file);
  smddp_store_value(sink, value, bytes);
  return 0;
}

static void must(smddp_status status, const char* what) {
  if (status == SMDDP_OK) return;
  fprintf(stderr, "%s: %d: %s\n", what, (int)status, smddp_last_error());
  exit(1);
}

static void expect(int truth, const char* what) {
  if (truth) return;
  fprintf(stderr, "not so: %s\n", what);
  exit(1);
}

static void run_all(smddp_group* group, int rank, int size) {
  float sums[1000];
  for (int i = 0; i < 1000; ++i) sums[i] = (float)(rank + i);
  must(smddp_all_reduce(group, sums, sums, 1000, SMDDP_FLOAT32, SMDDP_SUM, 0), "all_reduce");
  expect(sums[999] == (float)(size * 999 + size * (size - 1) / 2), "all_reduce's sum");

  int32_t* all = calloc((size_t)size, sizeof(int32_t));
  const int32_t mine = 10 + rank;
  must(smddp_all_gather(group, &mine, all, sizeof(mine), 0), "all_gather");
  for (int r = 0; r < size; ++r) expect(all[r] == 10 + r, "all_gather's order");
  for (int r = 0; r < size; ++r) all[r] = r == rank ? mine : 0;
  must(smddp_all_gather(group, &all[rank], all, sizeof(mine), 0), "all_gather in place");
  for (int r = 0; r < size; ++r) expect(all[r] == 10 + r, "all_gather's order in place");

  int32_t part = 0;
  must(smddp_reduce_scatter(group, all, &part, 1, SMDDP_INT32, SMDDP_MAX, 0), "reduce_scatter");
  expect(part == 10 + rank, "reduce_scatter's part");
  must(smddp_reduce_scatter(group, all, &part, 1, SMDDP_INT32, SMDDP_BAND, 0), "reduce_scatter of bits");
  expect(part == 10 + rank, "reduce_scatter's bits");
  must(smddp_reduce_scatter(group, all, &all[rank], 1, SMDDP_INT32, SMDDP_SUM, 0), "reduce_scatter in place");
  expect(all[rank] == size * (10 + rank), "reduce_scatter's part in place");
  free(all);

  float* pairs = calloc((size_t)size, 2 * sizeof(float));
  for (int r = 0; r < size; ++r) pairs[2 * r] = (float)r;
  float sum[2] = {0, 1};
  must(smddp_reduce_scatter(group, pairs, sum, 1, SMDDP_COMPLEX64, SMDDP_SUM, 0), "reduce_scatter of complex numbers");
  expect(sum[0] == (float)(rank * size) && sum[1] == 0.F, "reduce_scatter's complex sum");
  free(pairs);

  char word[8] = "";
  if (rank == size - 1) strcpy(word, "hello");
  must(smddp_broadcast(group, word, sizeof(word), size - 1, 0), "broadcast");
  expect(strcmp(word, "hello") == 0, "broadcast's bytes");
  must(smddp_barrier(group, 0), "barrier");
}

/* Rank 0 aborts when all others have found the group alive. */
static void end_together(smddp_group* group, int rank, int size, char* folder) {
  char key[32];
  snprintf(key, sizeof(key), "checked/%d", rank);
  expect(set(folder, key, "", 0) == 0, "a file");
  for (int other = 0; rank == 0 && other < size; ++other) {
    snprintf(key, sizeof(key), "checked/%d", other);
    FILE* file = await(folder, key, 60000);
    expect(file != NULL, key);
    fclose(file);
  }
  if (rank == 0) smddp_abort(group, "enough");
}

static void check_errors(smddp_group* group, int rank, int size, char* folder) {
  expect(smddp_broadcast(group, NULL, 0, 99, 0) == SMDDP_ERROR_USAGE, "a root beyond the group is refused");
  expect(strstr(smddp_last_error(), "rank 99") != NULL, "and named");
  expect(smddp_all_reduce(group, NULL, NULL, 0, (smddp_dtype)77, SMDDP_SUM, 0) == SMDDP_ERROR_USAGE, "a type 77");
  float value = 0;
  expect(smddp_all_reduce(group, NULL, &value, 1, SMDDP_FLOAT32, SMDDP_SUM, 0) == SMDDP_ERROR_USAGE, "no input");
  expect(strstr(smddp_last_error(), "`in` is NULL") != NULL, "and named");
  expect(smddp_all_reduce(group, &value, &value, SIZE_MAX / 2 + 1, SMDDP_FLOAT32, SMDDP_SUM, 0) == SMDDP_ERROR_USAGE,
         "a number of bytes that wraps round to 0");
  expect(smddp_all_gather(group, &value, &value, SIZE_MAX, 0) == SMDDP_ERROR_USAGE, "too many bytes");
  expect(smddp_broadcast(group, &value, SIZE_MAX, 0, 0) == SMDDP_ERROR_USAGE, "too many bytes to broadcast");
  expect(strstr(smddp_last_error(), "more than an address space holds") != NULL, "and said so");
  must(smddp_check(group), "usage errors leave the group alive");
  must(smddp_barrier(group, INT64_MAX), "a barrier that may take for ever");
  char* stats = smddp_stats(group);
  expect(stats && strstr(stats, "\"all_reduce\": {\"calls\": 1,"), "the counters");
  smddp_free(stats);
  char* lines = smddp_flight_recorder(group);
  expect(lines && strstr(lines, "\"operation\": \"reduce_scatter\""), "the last operations");
  smddp_free(lines);
  end_together(group, rank, size, folder);
  expect(smddp_barrier(group, 20000) == SMDDP_ERROR_ABORTED, "an abort wakes all ranks");
  expect(strstr(smddp_last_error(), "enough") != NULL, "with its reason");
  expect(smddp_broadcast(group, NULL, 1, 0, 0) == SMDDP_ERROR_USAGE, "arguments are looked at first");
  expect(smddp_broadcast(group, &value, 1, 0, 0) == SMDDP_ERROR_ABORTED, "then the group");
}

static void expect_complaint(int truth, const char* what) {
  expect(truth && strstr(smddp_last_error(), "the group is NULL"), what);
  expect(smddp_create(NULL, NULL) == SMDDP_ERROR_USAGE, "another text for the next one's");
}

static void check_null(void) {
  expect_complaint(smddp_rank(NULL) == -1, "NULL has no rank");
  expect_complaint(smddp_size(NULL) == -1, "NULL has no size");
  expect_complaint(smddp_path(NULL) == NULL, "NULL has no path");
  expect_complaint(smddp_stats(NULL) == NULL, "NULL has no counters");
  expect_complaint(smddp_flight_recorder(NULL) == NULL, "NULL has no operations");
  expect_complaint(smddp_barrier(NULL, 0) == SMDDP_ERROR_USAGE, "NULL has no barrier");
  smddp_store_value(NULL, "value", 5);
  smddp_destroy(NULL);
}

static int get_nothing(void* context, const char* key, int64_t timeout_ms, void* sink) {
  (void)context, (void)key, (void)timeout_ms;
  smddp_store_value(sink, NULL, 5);
  return 0;
}

static void check_refusals(smddp_options options) {
  smddp_group* group = NULL;
  options.size = INT_MAX;
  expect(smddp_create(&options, &group) == SMDDP_ERROR_USAGE && !group, "a size beyond all limits");
  expect(strstr(smddp_last_error(), "2147483647 ranks: expected 1 to 1048576") != NULL, "and named");
  options.rank = 1;
  options.size = 2;
  options.store.get = get_nothing;
  expect(smddp_create(&options, &group) != SMDDP_OK && !group, "a value that is NULL");
}

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) return 2;
  if (argc == 5) last_key = argv[4];
  const int rank = atoi(argv[1]);
  const int size = atoi(argv[2]);
  const char* const settings[] = {"SMDDP_SHM_CHUNK_BYTES=65536", NULL};
  smddp_options options = {0};
  options.struct_size = sizeof(options);
  options.rank = rank;
  options.size = size;
  options.timeout_ms = 30000;
  options.name = "consumer";
  options.settings = settings;
  options.store.context = argv[3];
  options.store.set = set;
  options.store.get = get;
  check_null();
  check_refusals(options);
  smddp_group* group = NULL;
  must(smddp_create(&options, &group), "create");
  expect(smddp_rank(group) == rank && smddp_size(group) == size, "rank and size");
  run_all(group, rank, size);
  options.name = "another";
  smddp_group* second = NULL;
  must(smddp_create(&options, &second), "create in the same store");
  must(smddp_barrier(second, 0), "barrier of the second group");
  smddp_destroy(second);
  check_errors(group, rank, size, argv[3]);
  printf("%s %s\n", smddp_version(), smddp_path(group));
  smddp_destroy(group);
  return 0;
}
