// SPDX-License-Identifier: Apache-2.0
//
// libcache.hpp: libcache for C++20. Header only; link with -lcache. libcache.h tells what each call does, here stands
// only what C++ adds: owners that close what they hold, spans, and results in place of codes.
//
//     libcache::Client client = libcache::Client::connect().value();
//     libcache::Session session = client.open_session("imagenet").value();
//     libcache::Cache rows = session.open(1, {.expected_rows = 60'000}).value();
//     if (auto row = rows.get(i))                       // pointers into shared memory, nothing is copied
//         use(row->column(0)->bytes());
//     else if (row.error().is(libcache::Code::not_found)) // a miss: read the source
//         rows.put(i, {libcache::array(pixels, {28, 28}), libcache::scalar(label)});
//
// Results. No call throws for a failure of the cache: it returns a Result, which holds the value or an Error with a
//   code and the library's sentence. value() is for those who want an exception (with -fno-exceptions it ends the
//   program).
// Lifetime. A View and what was got from it ends before its Cache is closed. That is the caller's to keep, as with an
//   iterator; what can be caught at compile time (a view of a temporary Cache) is.
// Threads. Any object may be used by several threads at once through const members; a Cache's other members, too.
#ifndef LIBCACHE_HPP
#define LIBCACHE_HPP

#include <libcache.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace libcache {

// ---- results -------------------------------------------------------------------------------------------------------

// enum cache_error. What to do next stands there beside each one.
enum class Code : int {
    invalid = CACHE_EINVAL,
    not_found = CACHE_ENOTFOUND,
    full = CACHE_EFULL,
    gone = CACHE_EGONE,
    server = CACHE_ESERVER,
    version = CACHE_EVERSION,
    conflict = CACHE_ECONFLICT,
    building = CACHE_EBUILDING,
    corrupt = CACHE_ECORRUPT,
    io = CACHE_EIO,
    no_session = CACHE_ENOSESSION,
    no_memory = CACHE_ENOMEM,
    permission = CACHE_EPERM,
    timeout = CACHE_ETIMEOUT,
    not_supported = CACHE_ENOTSUP,
    limit = CACHE_ELIMIT
};

class [[nodiscard]] Error {
  public:
    // Without a message of its own it says what the code means; so a miss costs no allocation.
    explicit Error(int code, std::string message = {}) : code_(code), message_(std::move(message)) {}

    // What this thread's last call, which returned `code`, says about it.
    static Error last(int64_t code) { return Error(static_cast<int>(code), cache_last_error()); }

    Code code() const noexcept { return static_cast<Code>(code_); } // a newer library may have others than those above
    bool is(Code code) const noexcept { return code == this->code(); }
    const char *message() const noexcept { return message_.empty() ? cache_strerror(code_) : message_.c_str(); }

  private:
    int code_;
    std::string message_;
};

#ifdef __cpp_exceptions
class Exception : public std::runtime_error {
  public:
    explicit Exception(const Error &error) : std::runtime_error(error.message()), code_(error.code()) {}
    Code code() const noexcept { return code_; }

  private:
    Code code_;
};
#endif

[[noreturn]] inline void raise(const Error &error) {
#ifdef __cpp_exceptions
    throw Exception(error);
#else
    std::fprintf(stderr, "libcache: %s\n", error.message());
    std::abort();
#endif
}

// A value or an Error, as std::expected of C++23: * and -> need a value, error() needs that there is none.
template <class T> class [[nodiscard]] Result {
  public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    T &operator*() &noexcept { return *there(); }
    const T &operator*() const &noexcept { return *there(); }
    T &&operator*() &&noexcept { return std::move(*there()); }
    T *operator->() noexcept { return there(); }
    const T *operator->() const noexcept { return there(); }

    T &value() & { return demand(), *there(); }
    const T &value() const & { return demand(), *there(); }
    T value() && { return demand(), std::move(*there()); }
    T value_or(T other) && { return has_value() ? std::move(*there()) : std::move(other); }

    const Error &error() const noexcept {
        assert(!has_value());
        return *std::get_if<1>(&state_);
    }

  private:
    T *there() noexcept {
        assert(has_value());
        return std::get_if<0>(&state_);
    }
    const T *there() const noexcept {
        assert(has_value());
        return std::get_if<0>(&state_);
    }
    void demand() const {
        if (!has_value()) raise(error());
    }

    std::variant<T, Error> state_;
};

template <> class [[nodiscard]] Result<void> {
  public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}

    bool has_value() const noexcept { return !error_; }
    explicit operator bool() const noexcept { return has_value(); }
    void value() const {
        if (error_) raise(*error_);
    }
    const Error &error() const noexcept {
        assert(error_);
        return *error_;
    }

  private:
    std::optional<Error> error_;
};

namespace detail {

inline Result<void> done(int64_t code) {
    if (code < 0) return Error::last(code);
    return {};
}

inline const char *or_null(const std::string &text) {
    return text.empty() ? nullptr : text.c_str();
}

} // namespace detail

// ---- columns -------------------------------------------------------------------------------------------------------

using Dtype = cache_dtype;

// The type of element that a C++ type is stored as. float16 and bfloat16 have no type in C++20: specialise this for the
// one you use, e.g. template <> struct libcache::dtype_of<_Float16> : libcache::Stored<CACHE_FLOAT16> {};
template <Dtype value> struct Stored : std::integral_constant<Dtype, value> {};
template <class T> struct dtype_of {};
template <> struct dtype_of<bool> : Stored<CACHE_BOOL> {};
template <> struct dtype_of<int8_t> : Stored<CACHE_INT8> {};
template <> struct dtype_of<int16_t> : Stored<CACHE_INT16> {};
template <> struct dtype_of<int32_t> : Stored<CACHE_INT32> {};
template <> struct dtype_of<int64_t> : Stored<CACHE_INT64> {};
template <> struct dtype_of<uint8_t> : Stored<CACHE_UINT8> {};
template <> struct dtype_of<uint16_t> : Stored<CACHE_UINT16> {};
template <> struct dtype_of<uint32_t> : Stored<CACHE_UINT32> {};
template <> struct dtype_of<uint64_t> : Stored<CACHE_UINT64> {};
template <> struct dtype_of<float> : Stored<CACHE_FLOAT32> {};
template <> struct dtype_of<double> : Stored<CACHE_FLOAT64> {};
template <> struct dtype_of<std::byte> : Stored<CACHE_BYTES> {};
template <> struct dtype_of<char> : Stored<CACHE_STRING> {};

template <class T>
concept Element = std::is_trivially_copyable_v<T> && requires {
    { dtype_of<T>::value } -> std::convertible_to<Dtype>;
};

// Type and shape of a column. The shape is kept in it.
class Spec {
  public:
    Spec(Dtype dtype, std::span<const int64_t> shape) : dtype_(dtype), ndim_(static_cast<uint32_t>(shape.size())) {
        std::copy_n(shape.begin(), std::min<size_t>(shape.size(), CACHE_MAX_DIMENSIONS), extents_.begin());
    }
    Spec(Dtype dtype, std::initializer_list<int64_t> shape) : Spec(dtype, std::span(shape.begin(), shape.size())) {}
    template <Element T> static Spec of(std::initializer_list<int64_t> shape) { return {dtype_of<T>::value, shape}; }

    // As libcache.h wants it: points into this object.
    cache_column column(const void *data, uint64_t bytes) const {
        return {const_cast<void *>(data), bytes, extents_.data(), static_cast<uint32_t>(dtype_), ndim_, {}};
    }
    // What the shape makes it; 0 where that is more than 2^64, which no call accepts for such a shape.
    uint64_t bytes() const {
        uint64_t product = cache_dtype_bytes(static_cast<uint32_t>(dtype_));
        for (uint32_t i = 0; i < std::min(ndim_, CACHE_MAX_DIMENSIONS); ++i)
            if (__builtin_mul_overflow(product, static_cast<uint64_t>(extents_[i]), &product)) return 0;
        return product;
    }

  private:
    Dtype dtype_;
    uint32_t ndim_; // more than CACHE_MAX_DIMENSIONS: the library refuses it
    std::array<int64_t, CACHE_MAX_DIMENSIONS> extents_;
};

// A column to be stored: refers to the caller's data, which must live until put returns.
class Input {
  public:
    Input(const Spec &spec, const void *data, uint64_t bytes) : spec_(spec), data_(data), bytes_(bytes) {}
    cache_column column() const { return spec_.column(data_, bytes_); }

  private:
    Spec spec_;
    const void *data_;
    uint64_t bytes_;
};

// n elements with a shape; a put whose shape does not have n of them is Code::invalid.
template <std::ranges::contiguous_range R>
Input array(const R &elements, std::span<const int64_t> shape) requires Element<std::ranges::range_value_t<R>> {
    using T = std::ranges::range_value_t<R>;
    const std::span<const T> span(elements);
    return {Spec(dtype_of<T>::value, shape), span.data(), span.size_bytes()};
}
template <std::ranges::contiguous_range R>
Input array(const R &elements, std::initializer_list<int64_t> shape) requires Element<std::ranges::range_value_t<R>> {
    return array(elements, std::span(shape.begin(), shape.size()));
}
// One dimension.
template <std::ranges::contiguous_range R>
Input array(const R &elements) requires Element<std::ranges::range_value_t<R>> {
    return array(elements, {static_cast<int64_t>(std::ranges::size(elements))});
}
// No dimension. Not of a temporary, which could be gone by the time of the put.
template <Element T> Input scalar(const T &value) {
    return {Spec(dtype_of<T>::value, std::span<const int64_t>()), &value, sizeof value};
}
template <Element T> Input scalar(const T &&value) = delete;

inline Input bytes(std::span<const std::byte> data) {
    return array(data);
}
inline Input text(std::string_view utf8) {
    return array(utf8);
}

// A column of a row that was found. Valid as long as the view it came from.
class Column {
  public:
    explicit Column(const cache_column &column) : column_(column) {}

    Dtype dtype() const noexcept { return static_cast<Dtype>(column_.dtype); }
    std::span<const int64_t> shape() const noexcept { return {column_.shape, column_.ndim}; }
    std::span<const std::byte> bytes() const noexcept {
        return {static_cast<const std::byte *>(column_.data), static_cast<size_t>(column_.bytes)};
    }
    std::string_view text() const noexcept { return {static_cast<const char *>(column_.data), column_.bytes}; }

    // All elements, in the order of the shape, last dimension first. Another type than was stored is Code::invalid.
    template <Element T> Result<std::span<const T>> as() const {
        if (dtype() != dtype_of<T>::value) return mismatch(dtype_of<T>::value);
        return std::span<const T>(static_cast<const T *>(column_.data), column_.bytes / sizeof(T));
    }
    // The only element.
    template <Element T> Result<T> scalar() const {
        if (dtype() != dtype_of<T>::value) return mismatch(dtype_of<T>::value);
        if (column_.bytes != sizeof(T))
            return Error(CACHE_EINVAL, "the column has " + std::to_string(column_.bytes / sizeof(T)) +
                                           " elements, not 1: read it with as()");
        return *static_cast<const T *>(column_.data);
    }

  private:
    Error mismatch(Dtype asked) const {
        return Error(CACHE_EINVAL, "the column was stored as type " + std::to_string(column_.dtype) +
                                       " of enum cache_dtype and is asked for as type " + std::to_string(asked) +
                                       ": ask for the stored one, or for bytes()");
    }

    cache_column column_;
};

// ---- rows ----------------------------------------------------------------------------------------------------------

// A row that somebody else keeps: a View or a Batch. False: a miss.
class Row {
  public:
    explicit Row(const cache_view *view) : view_(view) {}
    explicit operator bool() const noexcept { return view_->cache != nullptr; }

    int64_t id() const noexcept { return view_->row_id; }
    uint32_t columns() const noexcept { return static_cast<uint32_t>(std::max(cache_view_columns(view_), 0)); }
    Result<Column> column(uint32_t i) const {
        cache_column column;
        if (const int code = cache_view_column(view_, i, &column); code < 0) return Error::last(code);
        return Column(column);
    }

  private:
    const cache_view *view_;
};

// A row that was found, until the end of this object.
class View {
  public:
    explicit View(const cache_view &view) noexcept : view_(view) {}
    View(View &&other) noexcept : view_(std::exchange(other.view_, cache_view{})) {}
    View &operator=(View &&other) noexcept {
        std::swap(view_, other.view_);
        return *this;
    }
    ~View() { cache_view_release(&view_); }

    Row row() const noexcept { return Row(&view_); }
    int64_t id() const noexcept { return view_.row_id; }
    uint32_t columns() const noexcept { return row().columns(); }
    Result<Column> column(uint32_t i) const { return row().column(i); }

  private:
    cache_view view_;
};

// What Cache::get_batch found, in the order asked for. May be used again for the next batch: its memory stays.
class Batch {
  public:
    Batch() = default;
    Batch(Batch &&other) noexcept : views_(std::move(other.views_)), hits_(std::exchange(other.hits_, 0)) {
        other.views_.clear();
    }
    Batch &operator=(Batch &&other) noexcept {
        std::swap(views_, other.views_);
        std::swap(hits_, other.hits_);
        return *this;
    }
    ~Batch() { clear(); }

    size_t size() const noexcept { return views_.size(); }
    size_t hits() const noexcept { return hits_; }
    Row operator[](size_t i) const noexcept { return Row(&views_[i]); }
    void clear() noexcept {
        for (cache_view &view : views_)
            cache_view_release(&view);
        views_.clear();
        hits_ = 0;
    }

  private:
    friend class Cache;
    std::vector<cache_view> views_;
    size_t hits_ = 0;
};

// Room for one row that is written in place. Nobody sees the row before commit(); without one it is aborted. It belongs
// to the process that made it: a forked child must not touch it.
class Reservation {
  public:
    Reservation(cache_reservation *handle, std::vector<cache_column> columns) noexcept
        : handle_(handle), columns_(std::move(columns)) {}
    Reservation(Reservation &&) noexcept = default;
    Reservation &operator=(Reservation &&) noexcept = default;

    size_t columns() const noexcept { return columns_.size(); }
    std::span<std::byte> bytes(size_t i) noexcept {
        return {static_cast<std::byte *>(columns_[i].data), static_cast<size_t>(columns_[i].bytes)};
    }
    template <Element T> std::span<T> as(size_t i) noexcept {
        assert(columns_[i].dtype == static_cast<uint32_t>(dtype_of<T>::value));
        return {static_cast<T *>(columns_[i].data), static_cast<size_t>(columns_[i].bytes / sizeof(T))};
    }

    // True: this call stored the row. False: somebody else was faster. What bytes() gave must not be used any more.
    Result<bool> commit() && {
        const int code = cache_commit(handle_.release());
        if (code < 0) return Error::last(code);
        return code == 0;
    }

  private:
    struct Abort {
        void operator()(cache_reservation *handle) const noexcept { cache_abort(handle); }
    };
    std::unique_ptr<cache_reservation, Abort> handle_;
    std::vector<cache_column> columns_;
};

// ---- caches --------------------------------------------------------------------------------------------------------

struct OpenOptions {
    uint64_t limit_bytes = 0;   // of the whole cache; 0: what the server may use
    uint64_t expected_rows = 0; // a hint
    std::string tag{};          // what makes the rows; "": joins any
    std::string label{};        // for people
    bool read_only = false;
    bool create = true; // false: a cache that does not exist is Code::not_found
    bool build = false; // rows are appended: see Cache::build_begin
    bool spill = false; // rows that memory refuses go to disk
};

// Whether a put stored its row.
enum class Put {
    stored,
    was_there // the first one wins: the old row stays
};

// Where a build stands when it is begun.
struct Build {
    bool done;       // the source has ended: nothing to append
    int64_t next_id; // rows appended so far: skip so many in the source
};

class Cache {
  public:
    Cache(cache *handle, std::string differs) noexcept : handle_(handle), differs_(std::move(differs)) {}

    // How the cache differs from what was asked for when it was opened; "": it does not.
    const std::string &differs() const noexcept { return differs_; }
    cache *handle() const noexcept { return handle_.get(); }

    Result<Put> put(int64_t id, std::span<const Input> row) {
        const Columns columns(row);
        const int code = cache_put(handle(), id, columns.data(), columns.size());
        if (code < 0) return Error::last(code);
        return code == 0 ? Put::stored : Put::was_there;
    }
    Result<Put> put(int64_t id, std::initializer_list<Input> row) {
        return put(id, std::span(row.begin(), row.size()));
    }

    // std::nullopt: the row is there.
    Result<std::optional<Reservation>> reserve(int64_t id, std::span<const Spec> row) & {
        std::vector<cache_column> columns;
        for (const Spec &spec : row)
            columns.push_back(spec.column(nullptr, spec.bytes()));
        cache_reservation *made = nullptr;
        const int code = cache_reserve(handle(), id, columns.data(), static_cast<uint32_t>(columns.size()), &made);
        if (code < 0) return Error::last(code);
        if (code == 1) return std::optional<Reservation>();
        return std::optional<Reservation>(std::in_place, made, std::move(columns));
    }
    Result<std::optional<Reservation>> reserve(int64_t id, std::initializer_list<Spec> row) & {
        return reserve(id, std::span(row.begin(), row.size()));
    }

    // Code::not_found: a miss.
    Result<View> get(int64_t id) const & {
        cache_view view;
        const int code = cache_get(handle(), id, &view);
        if (code == CACHE_ENOTFOUND) return Error(code);
        if (code < 0) return Error::last(code);
        return View(view);
    }
    Result<View> get(int64_t id) const && = delete; // the view would point to what is closed

    // Replaces what `batch` held. Faster than as many gets.
    Result<void> get_batch(std::span<const int64_t> ids, Batch &batch) const & {
        batch.clear();
        batch.views_.resize(ids.size());
        const int64_t hits = cache_get_batch(handle(), ids.data(), ids.size(), batch.views_.data());
        if (hits < 0) return batch.views_.clear(), Error::last(hits);
        batch.hits_ = static_cast<size_t>(hits);
        return {};
    }

    // Copies column `column` of each row into its share of `to`: row i begins at element i * (to.size() / ids.size()).
    // found[i] tells which are there; with an empty `found` a miss is Code::not_found, after all rows were tried.
    // Returns how many were copied.
    template <class T>
    Result<size_t> gather(std::span<const int64_t> ids, uint32_t column, std::span<T> to,
                          std::span<uint8_t> found = {}) const requires std::is_trivially_copyable_v<T> {
        if (!found.empty() && found.size() != ids.size())
            return Error(CACHE_EINVAL, "gather: found has " + std::to_string(found.size()) + " places for " +
                                           std::to_string(ids.size()) + " rows: give it as many");
        const size_t stride = ids.empty() ? 0 : to.size() / ids.size();
        return count(cache_gather(handle(), ids.data(), ids.size(), column, to.data(), stride * sizeof(T),
                                  found.empty() ? nullptr : found.data()));
    }

    Result<bool> contains(int64_t id) const {
        uint8_t found = 0;
        if (const int64_t code = cache_contains(handle(), &id, 1, &found); code < 0) return Error::last(code);
        return found != 0;
    }

    // The ids of all rows, in no particular order.
    Result<std::vector<int64_t>> ids() const {
        constexpr size_t kAtOnce = 4096;
        std::vector<int64_t> ids;
        for (uint64_t cursor = 0;;) {
            const size_t before = ids.size();
            ids.resize(before + kAtOnce);
            const int64_t n = cache_scan(handle(), &cursor, ids.data() + before, kAtOnce);
            if (n < 0) return Error::last(n);
            ids.resize(before + static_cast<size_t>(n));
            if (n == 0) return ids;
        }
    }

    Result<cache_stats> stat() const {
        cache_stats stats{};
        stats.size = sizeof stats;
        if (const int code = cache_stat(handle(), &stats); code < 0) return Error::last(code);
        return stats;
    }

    // Verifies what must hold in the cache's memory, on a live cache; with `rows` the bytes of each row, too. Returns a
    // sentence for each fault: none, if all is right.
    Result<std::vector<std::string>> check(bool rows = false) const {
        std::vector<std::string> faults;
        const auto add = [](const char *fault, void *to) noexcept {
            static_cast<std::vector<std::string> *>(to)->emplace_back(fault);
        };
        const int64_t n = cache_check(handle(), rows ? uint32_t{CACHE_CHECK_ROWS} : 0, add, &faults);
        if (n < 0) return Error::last(n);
        return faults;
    }

    Result<void> flush() { return detail::done(cache_flush(handle())); }

    // Names of the columns, once per cache.
    Result<void> set_names(std::span<const std::string> names) {
        std::vector<const char *> pointers;
        for (const std::string &name : names)
            pointers.push_back(name.c_str());
        return detail::done(cache_schema_set(handle(), pointers.data(), static_cast<uint32_t>(pointers.size())));
    }
    Result<std::vector<std::string>> names() const {
        std::array<char, 4096> buffer; // more is never stored
        size_t bytes = buffer.size();
        const int n = cache_schema_get(handle(), buffer.data(), &bytes);
        if (n < 0) return Error::last(n);
        std::vector<std::string> names;
        for (const char *at = buffer.data(); static_cast<int>(names.size()) < n; at += names.back().size() + 1)
            names.emplace_back(at);
        return names;
    }

    // Streams: sources without an index. See cache_build_begin.
    Result<Build> build_begin() {
        int64_t next_id = 0;
        const int code = cache_build_begin(handle(), &next_id);
        if (code < 0) return Error::last(code);
        return Build{code == 1, next_id};
    }
    Result<int64_t> append(std::span<const Input> row) {
        const Columns columns(row);
        int64_t id = 0;
        if (const int code = cache_append(handle(), columns.data(), columns.size(), &id); code < 0)
            return Error::last(code);
        return id;
    }
    Result<int64_t> append(std::initializer_list<Input> row) { return append(std::span(row.begin(), row.size())); }
    Result<void> build_done() { return detail::done(cache_build_done(handle())); }
    Result<void> build_leave() { return detail::done(cache_build_leave(handle())); }
    Result<void> build_wait(std::chrono::milliseconds timeout = std::chrono::milliseconds(-1)) {
        return detail::done(cache_build_wait(handle(), timeout.count()));
    }

  private:
    struct Close {
        void operator()(cache *handle) const noexcept { cache_close(handle); }
    };

    // Inputs as an array of cache_column. Few of them need no allocation.
    class Columns {
      public:
        explicit Columns(std::span<const Input> row) : size_(static_cast<uint32_t>(row.size())) {
            if (row.size() > few_.size()) many_.resize(row.size());
            cache_column *const to = many_.empty() ? few_.data() : many_.data();
            for (size_t i = 0; i < row.size(); ++i)
                to[i] = row[i].column();
        }
        const cache_column *data() const { return many_.empty() ? few_.data() : many_.data(); }
        uint32_t size() const { return size_; }

      private:
        uint32_t size_;
        std::array<cache_column, 8> few_;
        std::vector<cache_column> many_;
    };

    static Result<size_t> count(int64_t n) {
        if (n < 0) return Error::last(n);
        return static_cast<size_t>(n);
    }

    std::unique_ptr<cache, Close> handle_;
    std::string differs_;
};

// ---- server and sessions -------------------------------------------------------------------------------------------

struct ConnectOptions {
    uint32_t port = 0;                    // 0: $LIBCACHE_PORT, else $MS_CACHE_PORT, else CACHE_DEFAULT_PORT
    std::string hostname{};               // "" or "127.0.0.1"
    std::string socket_path{};            // "": made from the port
    std::chrono::milliseconds timeout{0}; // of every call that may wait; 0: a minute
};

struct SessionOptions {
    std::string name{}; // "": a session of its own
    bool keep = false;  // its caches are not dropped to make room, nor for being idle
};

// One line of Client::list.
struct Listed {
    uint32_t session_id;
    std::string session_name;
    std::optional<cache_stats> stats; // none: the session has no cache
    std::vector<int32_t> pids;
};

// A set of caches that live and end together; a number. It does not end with this object.
class Session {
  public:
    Session(std::shared_ptr<cache_client> client, uint32_t id) noexcept : client_(std::move(client)), id_(id) {}
    uint32_t id() const noexcept { return id_; }

    Result<Cache> open(uint32_t cache_id, const OpenOptions &wanted = {}) const {
        cache_options options{};
        options.size = sizeof options;
        options.flags = flag(wanted.read_only, CACHE_READ_ONLY) | flag(!wanted.create, CACHE_NO_CREATE) |
                        flag(wanted.build, CACHE_BUILD);
        options.memory_limit_bytes = wanted.limit_bytes;
        options.expected_rows = wanted.expected_rows;
        options.spill = wanted.spill;
        options.tag = detail::or_null(wanted.tag);
        options.label = detail::or_null(wanted.label);
        cache *handle = nullptr;
        const int code = cache_open(client_.get(), id_, cache_id, &options, &handle);
        if (code < 0) return Error::last(code);
        return Cache(handle, code == 1 ? cache_last_error() : "");
    }
    Result<void> destroy_cache(uint32_t cache_id) const {
        return detail::done(cache_destroy(client_.get(), id_, cache_id));
    }
    Result<void> destroy() const { return detail::done(cache_session_destroy(client_.get(), id_)); }

  private:
    static uint32_t flag(bool set, cache_open_flags bit) { return set ? static_cast<uint32_t>(bit) : 0; }

    std::shared_ptr<cache_client> client_;
    uint32_t id_;
};

// A connection to a server. Copies share it; sessions keep it, caches do not need it.
class Client {
  public:
    static Result<Client> connect(const ConnectOptions &wanted = {}) {
        cache_client_options options{};
        options.size = sizeof options;
        options.port = wanted.port;
        options.hostname = detail::or_null(wanted.hostname);
        options.socket_path = detail::or_null(wanted.socket_path);
        options.timeout_ms = wanted.timeout.count();
        cache_client *handle = nullptr;
        if (const int code = cache_connect(&options, &handle); code < 0) return Error::last(code);
        return Client(handle);
    }

    // With a name: the session of that name, made by whoever asks first.
    Result<Session> create_session(const SessionOptions &wanted = {}) const {
        const cache_session_options options{sizeof options, wanted.keep ? uint32_t{CACHE_SESSION_KEEP} : 0,
                                            detail::or_null(wanted.name)};
        uint32_t id = 0;
        if (const int code = cache_session_create_with(handle_.get(), &options, &id); code < 0)
            return Error::last(code);
        return Session(handle_, id);
    }
    Result<Session> open_session(const std::string &name) const { return create_session({.name = name}); }
    // One that somebody else made, e.g. `cache_admin -g`. Whether it exists shows when a cache is opened.
    Session session(uint32_t id) const { return Session(handle_, id); }

    Result<std::vector<Listed>> list() const {
        std::vector<Listed> lines;
        const auto add = [](const cache_list_entry *entry, void *to) noexcept {
            Listed line{entry->session_id, entry->session_name, {}, {entry->pids, entry->pids + entry->n_pids}};
            if (entry->stats != nullptr) line.stats = *entry->stats;
            static_cast<std::vector<Listed> *>(to)->push_back(std::move(line));
            return 0;
        };
        if (const int code = cache_list(handle_.get(), add, &lines); code < 0) return Error::last(code);
        return lines;
    }
    Result<cache_server_stats> server_info() const {
        cache_server_stats stats{};
        stats.size = sizeof stats;
        if (const int code = cache_server_info(handle_.get(), &stats); code < 0) return Error::last(code);
        return stats;
    }
    Result<void> stop_server() const { return detail::done(cache_server_stop(handle_.get())); }
    cache_client *handle() const noexcept { return handle_.get(); }

  private:
    explicit Client(cache_client *handle) : handle_(handle, cache_disconnect) {}
    std::shared_ptr<cache_client> handle_;
};

} // namespace libcache
#endif
