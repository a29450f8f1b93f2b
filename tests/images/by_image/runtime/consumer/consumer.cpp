// A rank of a group: consumer RANK SIZE FOLDER. Adds the ranks' numbers up and prints the sum; ranks meet in FOLDER.
#include <smddp/smddp.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <thread>

namespace fs = std::filesystem;

static fs::path path_of(void* folder, std::string key) {
  for (char& letter : key) {
    if (letter == '/') letter = '.';
  }
  return *static_cast<fs::path*>(folder) / key;
}

// Under another name first: a reader must never find half a value.
static int set(void* folder, const char* key, const void* value, size_t bytes) {
  const fs::path path = path_of(folder, key);
  fs::path partial = path;
  partial += ".new";
  std::ofstream(partial, std::ios::binary).write(static_cast<const char*>(value), static_cast<std::streamsize>(bytes));
  fs::rename(partial, path);
  return 0;
}

static int get(void* folder, const char* key, int64_t timeout_ms, void* sink) {
  const fs::path path = path_of(folder, key);
  for (int64_t waited = 0; !fs::exists(path); waited += 5) {
    if (waited > timeout_ms) return 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::ifstream file(path, std::ios::binary);
  const std::string value{std::istreambuf_iterator<char>(file), {}};
  smddp_store_value(sink, value.data(), value.size());
  return 0;
}

static void must(smddp_status status) {
  if (status == SMDDP_OK) return;
  std::cerr << smddp_last_error() << "\n";
  std::exit(1);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  fs::path folder = argv[3];
  smddp_options options{};
  options.struct_size = sizeof(options);
  options.rank = std::atoi(argv[1]);
  options.size = std::atoi(argv[2]);
  options.timeout_ms = 30000;
  options.store = {&folder, set, get};
  smddp_group* group = nullptr;
  must(smddp_create(&options, &group));
  float total = static_cast<float>(options.rank + 1);
  must(smddp_all_reduce(group, &total, &total, 1, SMDDP_FLOAT32, SMDDP_SUM, 0));
  must(smddp_barrier(group, 0));
  std::cout << total << "\n";
  smddp_destroy(group);
}
