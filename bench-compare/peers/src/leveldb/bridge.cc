// LevelDB's C++ interface behind C functions.
//
// LevelDB's own C interface copies each value that is read twice: into a new string, and from there
// into new memory. These functions read into a string that the caller keeps, which a C++ program
// would do too. They also give LevelDB an Env and a Logger that count its background work and the
// bytes of its log. Both pass on every other call. On the path of a write there is one addition for
// each record of the log; nothing is on the path of a read.
//
// Threading: a database may be called from several threads. A batch, an iterator and a string belong
// to one thread at a time.

#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/env.h>
#include <leveldb/filter_policy.h>
#include <leveldb/write_batch.h>

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

using leveldb::Slice;
using leveldb::Status;

namespace {

thread_local bool is_background = false;
thread_local uint64_t flush_start_ns = 0;

uint64_t ThreadCpuNs() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return uint64_t(time.tv_sec) * 1000000000 + uint64_t(time.tv_nsec);
}

char* Copied(const std::string& text) { return strdup(text.c_str()); }

char* Error(const Status& status) {
  return status.ok() ? nullptr : Copied(status.ToString());
}

struct Counters {
  std::atomic<uint64_t> log_bytes{0};
  std::atomic<uint64_t> background_cpu_ns{0};
  std::atomic<uint64_t> background_flush_cpu_ns{0};
  std::atomic<uint64_t> flush_cpu_ns{0};
  std::atomic<uint64_t> flush_count{0};
  std::atomic<uint64_t> flush_bytes{0};
  std::atomic<uint64_t> compaction_count{0};
  std::atomic<uint64_t> compaction_bytes{0};
  std::atomic<uint64_t> memtable_waits{0};
  std::atomic<uint64_t> level0_waits{0};
};

// A file of the log, whose bytes are counted.
class CountingFile : public leveldb::WritableFile {
 public:
  CountingFile(leveldb::WritableFile* file, Counters* counters)
      : file_(file), counters_(counters) {}

  Status Append(const Slice& data) override {
    const Status status = file_->Append(data);
    // LevelDB appends under its mutex, so no other thread adds at the same time.
    if (status.ok()) {
      const uint64_t bytes = counters_->log_bytes.load(std::memory_order_relaxed);
      counters_->log_bytes.store(bytes + data.size(), std::memory_order_relaxed);
    }
    return status;
  }

  Status Close() override { return file_->Close(); }
  Status Flush() override { return file_->Flush(); }
  Status Sync() override { return file_->Sync(); }

 private:
  std::unique_ptr<leveldb::WritableFile> file_;
  Counters* const counters_;
};

// Counts the bytes of the log, and the jobs that are scheduled or run, with their processor time.
// LevelDB schedules one job at a time, and a job that finds more work to do schedules the next one
// before it ends.
class CountingEnv : public leveldb::EnvWrapper, public std::enable_shared_from_this<CountingEnv> {
 public:
  explicit CountingEnv(Counters* counters)
      : EnvWrapper(leveldb::Env::Default()), counters_(counters) {}

  Status NewWritableFile(const std::string& name, leveldb::WritableFile** file) override {
    return Counted(name, target()->NewWritableFile(name, file), file);
  }

  Status NewAppendableFile(const std::string& name, leveldb::WritableFile** file) override {
    return Counted(name, target()->NewAppendableFile(name, file), file);
  }

  void Schedule(void (*function)(void*), void* argument) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      outstanding_++;
    }
    target()->Schedule(&Run, new Job{shared_from_this(), function, argument});
  }

  void WaitUntilIdle() {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return outstanding_ == 0; });
  }

 private:
  struct Job {
    std::shared_ptr<CountingEnv> env;
    void (*function)(void*);
    void* argument;
  };

  // Tables and other files are given as they are.
  Status Counted(const std::string& name, const Status& status, leveldb::WritableFile** file) {
    static const std::string kLog = ".log";
    const bool is_log = name.size() >= kLog.size() &&
                        name.compare(name.size() - kLog.size(), kLog.size(), kLog) == 0;
    if (status.ok() && is_log) *file = new CountingFile(*file, counters_);
    return status;
  }

  static void Run(void* given) {
    std::unique_ptr<Job> job(static_cast<Job*>(given));
    if (!is_background) {
      pthread_setname_np(pthread_self(), "leveldb:bg");
      is_background = true;
    }
    const uint64_t start = ThreadCpuNs();
    job->function(job->argument);
    job->env->Ended(ThreadCpuNs() - start);
  }

  // The counters outlive the last job: the database is freed after WaitUntilIdle.
  void Ended(uint64_t cpu_ns) {
    counters_->background_cpu_ns += cpu_ns;
    std::lock_guard<std::mutex> lock(mutex_);
    outstanding_--;
    ended_.notify_all();
  }

  Counters* const counters_;
  std::mutex mutex_;
  std::condition_variable ended_;
  int outstanding_ = 0;
};

// LevelDB tells its log when a flush begins and ends, what a compaction wrote, and when a writer
// waits. It has no other interface for this.
class CountingLogger : public leveldb::Logger {
 public:
  explicit CountingLogger(Counters* counters) : counters_(counters) {}

  void Logv(const char* format, std::va_list arguments) override {
    char line[512];
    vsnprintf(line, sizeof(line), format, arguments);
    long long bytes;
    if (sscanf(line, "Level-0 table #%*u: %lld bytes", &bytes) == 1) {
      FlushEnded(bytes);
    } else if (StartsWith(line, "Level-0 table #")) {
      flush_start_ns = ThreadCpuNs();
    } else if (sscanf(line, "Compacted %*d@%*d + %*d@%*d files => %lld bytes", &bytes) == 1) {
      counters_->compaction_count++;
      counters_->compaction_bytes += bytes;
    } else if (StartsWith(line, "Current memtable full; waiting")) {
      counters_->memtable_waits++;
    } else if (StartsWith(line, "Too many L0 files; waiting")) {
      counters_->level0_waits++;
    }
  }

 private:
  static bool StartsWith(const char* line, const char* start) {
    return strncmp(line, start, strlen(start)) == 0;
  }

  void FlushEnded(long long bytes) {
    const uint64_t cpu_ns = ThreadCpuNs() - flush_start_ns;
    counters_->flush_cpu_ns += cpu_ns;
    if (is_background) counters_->background_flush_cpu_ns += cpu_ns;
    counters_->flush_count++;
    counters_->flush_bytes += bytes;
  }

  Counters* const counters_;
};

}  // namespace

extern "C" {

struct silt_leveldb_settings {
  size_t write_buffer_size;
  size_t cache_bytes;
  size_t max_file_size;
  size_t block_size;
  int block_restart_interval;
  int max_open_files;
  int bloom_bits;
  unsigned char snappy;
  unsigned char paranoid_checks;
  unsigned char reuse_logs;
  unsigned char verify_checksums;
};

struct silt_leveldb_figures {
  uint64_t log_bytes;
  uint64_t background_cpu_ns;
  uint64_t background_flush_cpu_ns;
  uint64_t flush_cpu_ns;
  uint64_t flush_count;
  uint64_t flush_bytes;
  uint64_t compaction_count;
  uint64_t compaction_bytes;
  uint64_t memtable_waits;
  uint64_t level0_waits;
};

struct silt_leveldb {
  Counters counters;
  std::shared_ptr<CountingEnv> env = std::make_shared<CountingEnv>(&counters);
  CountingLogger logger{&counters};
  std::unique_ptr<leveldb::Cache> cache;
  std::unique_ptr<const leveldb::FilterPolicy> filter;
  std::unique_ptr<leveldb::DB> db;
  leveldb::ReadOptions read;
};

void silt_leveldb_close(silt_leveldb* database) {
  database->db.reset();
  database->env->WaitUntilIdle();
  delete database;
}

// Returns null and sets `opened`, or returns the text of an error.
char* silt_leveldb_open(const char* path, const silt_leveldb_settings* settings,
                        silt_leveldb** opened) {
  auto* database = new silt_leveldb;
  database->cache.reset(leveldb::NewLRUCache(settings->cache_bytes));
  leveldb::Options options;
  options.create_if_missing = true;
  options.env = database->env.get();
  options.info_log = &database->logger;
  options.write_buffer_size = settings->write_buffer_size;
  options.block_cache = database->cache.get();
  options.max_file_size = settings->max_file_size;
  options.block_size = settings->block_size;
  options.block_restart_interval = settings->block_restart_interval;
  options.max_open_files = settings->max_open_files;
  options.paranoid_checks = settings->paranoid_checks;
  options.reuse_logs = settings->reuse_logs;
  options.compression = settings->snappy ? leveldb::kSnappyCompression : leveldb::kNoCompression;
  if (settings->bloom_bits > 0) {
    database->filter.reset(leveldb::NewBloomFilterPolicy(settings->bloom_bits));
    options.filter_policy = database->filter.get();
  }
  database->read.verify_checksums = settings->verify_checksums;
  leveldb::DB* db = nullptr;
  const Status status = leveldb::DB::Open(options, path, &db);
  database->db.reset(db);
  if (!status.ok()) {
    silt_leveldb_close(database);
    return Error(status);
  }
  *opened = database;
  return nullptr;
}

leveldb::WriteBatch* silt_leveldb_batch_create() { return new leveldb::WriteBatch; }
void silt_leveldb_batch_destroy(leveldb::WriteBatch* batch) { delete batch; }
void silt_leveldb_batch_clear(leveldb::WriteBatch* batch) { batch->Clear(); }

void silt_leveldb_batch_put(leveldb::WriteBatch* batch, const char* key, size_t key_bytes,
                            const char* value, size_t value_bytes) {
  batch->Put(Slice(key, key_bytes), Slice(value, value_bytes));
}

void silt_leveldb_batch_delete(leveldb::WriteBatch* batch, const char* key, size_t key_bytes) {
  batch->Delete(Slice(key, key_bytes));
}

char* silt_leveldb_write(silt_leveldb* database, leveldb::WriteBatch* batch, unsigned char sync) {
  leveldb::WriteOptions options;
  options.sync = sync;
  return Error(database->db->Write(options, batch));
}

std::string* silt_leveldb_string_create() { return new std::string; }
void silt_leveldb_string_destroy(std::string* string) { delete string; }

// Returns 1 if the key has a value, which then is in `string`; 0 if not; -1 and an error.
int silt_leveldb_get(silt_leveldb* database, const char* key, size_t key_bytes,
                     std::string* string, const char** value, size_t* value_bytes, char** error) {
  const Status status = database->db->Get(database->read, Slice(key, key_bytes), string);
  if (status.ok()) {
    *value = string->data();
    *value_bytes = string->size();
    return 1;
  }
  if (status.IsNotFound()) return 0;
  *error = Error(status);
  return -1;
}

leveldb::Iterator* silt_leveldb_iterator_create(silt_leveldb* database) {
  return database->db->NewIterator(database->read);
}

void silt_leveldb_iterator_destroy(leveldb::Iterator* iterator) { delete iterator; }

void silt_leveldb_iterator_seek(leveldb::Iterator* iterator, const char* key, size_t key_bytes) {
  iterator->Seek(Slice(key, key_bytes));
}

void silt_leveldb_iterator_first(leveldb::Iterator* iterator) { iterator->SeekToFirst(); }
void silt_leveldb_iterator_last(leveldb::Iterator* iterator) { iterator->SeekToLast(); }
void silt_leveldb_iterator_next(leveldb::Iterator* iterator) { iterator->Next(); }
void silt_leveldb_iterator_prev(leveldb::Iterator* iterator) { iterator->Prev(); }

// Returns 1 and sets the entry where the iterator is, or returns 0 at the end.
int silt_leveldb_iterator_entry(leveldb::Iterator* iterator, const char** key, size_t* key_bytes,
                                const char** value, size_t* value_bytes) {
  if (!iterator->Valid()) return 0;
  const Slice found = iterator->key();
  *key = found.data();
  *key_bytes = found.size();
  const Slice contents = iterator->value();
  *value = contents.data();
  *value_bytes = contents.size();
  return 1;
}

char* silt_leveldb_iterator_error(leveldb::Iterator* iterator) { return Error(iterator->status()); }

// Returns null if there is no such property.
char* silt_leveldb_property(silt_leveldb* database, const char* name) {
  std::string value;
  return database->db->GetProperty(name, &value) ? Copied(value) : nullptr;
}

// A null key is the first or the last of all.
void silt_leveldb_compact(silt_leveldb* database, const char* begin, size_t begin_bytes,
                          const char* end, size_t end_bytes) {
  const Slice first(begin, begin_bytes), last(end, end_bytes);
  database->db->CompactRange(begin ? &first : nullptr, end ? &last : nullptr);
}

void silt_leveldb_wait_until_idle(silt_leveldb* database) { database->env->WaitUntilIdle(); }

void silt_leveldb_read_figures(silt_leveldb* database, silt_leveldb_figures* figures) {
  const Counters& counters = database->counters;
  figures->log_bytes = counters.log_bytes;
  figures->background_cpu_ns = counters.background_cpu_ns;
  figures->background_flush_cpu_ns = counters.background_flush_cpu_ns;
  figures->flush_cpu_ns = counters.flush_cpu_ns;
  figures->flush_count = counters.flush_count;
  figures->flush_bytes = counters.flush_bytes;
  figures->compaction_count = counters.compaction_count;
  figures->compaction_bytes = counters.compaction_bytes;
  figures->memtable_waits = counters.memtable_waits;
  figures->level0_waits = counters.level0_waits;
}

int silt_leveldb_major_version() { return leveldb::kMajorVersion; }
int silt_leveldb_minor_version() { return leveldb::kMinorVersion; }

void silt_leveldb_free(char* text) { free(text); }

}  // extern "C"
