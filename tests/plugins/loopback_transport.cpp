// A transport plugin in C++17: ordered messages between the domains of one process.
//
// It shows how a plugin in C++ keeps the ABI's promises: no exception leaves a function, the
// envelope is compared before a byte of the payload is written, completions wait for room, and a
// thread that sleeps in `wait` or in `poll` learns of news.
#include <iccl_plugin.h>

#include <cerrno>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

ICCL_PLUGIN_NOTE("loopback-transport", "1.0.0", ICCL_FAMILY_TRANSPORT)

namespace {

using Envelope = std::vector<uint8_t>;

// A message that was posted and is not over.
struct Posted {
    uint64_t token;
    Envelope envelope;
    std::vector<iccl_segment> segments;

    uint64_t length() const {
        uint64_t bytes = 0;
        for (const auto &segment : segments) {
            bytes += segment.length;
        }
        return bytes;
    }
};

struct Domain;

// One end of a channel.
struct Channel {
    Domain *domain;
    uint64_t handle;
    uint64_t number;
    uint64_t link_digest;
    uint32_t peer_rank;
    uint64_t dialled; // The domain that this end dials, 0 for the end that waits.
    Channel *peer = nullptr;
    int32_t failure = ICCL_STATUS_OK;
    std::deque<Posted> sends;
    std::deque<Posted> receives;
};

// A domain. Everything is guarded by `lock`.
struct Domain {
    uint64_t id;
    uint32_t rank;
    std::string job_key;
    int event = -1;
    bool woken = false;
    std::deque<iccl_completion> completions;
    std::map<uint64_t, std::unique_ptr<Channel>> channels;

    ~Domain() {
        if (event >= 0) {
            close(event);
        }
    }
};

std::mutex lock;
std::map<uint64_t, std::unique_ptr<Domain>> domains;
uint64_t last_id = 0;
std::string throw_in; // For tests: the function that throws.

// A failure with its status, for use inside the plugin only.
struct Failure : std::runtime_error {
    int32_t status;
    Failure(int32_t status, const std::string &text) : std::runtime_error(text), status(status) {}
};

// Runs a function's body: whatever it throws becomes a status and words.
template <typename Body>
int32_t guarded(const char *call, iccl_error_info *error, Body body) noexcept {
    try {
        std::lock_guard<std::mutex> guard(lock);
        if (throw_in == call) {
            throw std::runtime_error("asked to throw");
        }
        return body();
    } catch (const Failure &failure) {
        return iccl_fail(error, failure.status, 0, failure.what());
    } catch (const std::bad_alloc &) {
        return iccl_fail(error, ICCL_STATUS_OUT_OF_RESOURCES, 0, "no memory left");
    } catch (const std::exception &exception) {
        try {
            const std::string text = std::string("threw in ") + call + ": " + exception.what();
            return iccl_fail(error, ICCL_STATUS_PANIC, 0, text.c_str());
        } catch (...) {
            return iccl_fail(error, ICCL_STATUS_PANIC, 0, "threw");
        }
    } catch (...) {
        return iccl_fail(error, ICCL_STATUS_PANIC, 0, "threw something that is no exception");
    }
}

Domain &domain_of(uint64_t handle) {
    const auto found = domains.find(handle);
    if (found == domains.end()) {
        throw Failure(ICCL_STATUS_INVALID_ARGUMENT, "this is no domain");
    }
    return *found->second;
}

Channel &channel_of(Domain &domain, uint64_t handle) {
    const auto found = domain.channels.find(handle);
    if (found == domain.channels.end()) {
        throw Failure(ICCL_STATUS_INVALID_ARGUMENT, "this is no channel");
    }
    return *found->second;
}

// Makes the descriptor readable.
void signal(Domain &domain) {
    const uint64_t one = 1;
    // The counter is full only if it is readable already.
    [[maybe_unused]] const ssize_t written = write(domain.event, &one, sizeof one);
}

// Makes the descriptor unreadable.
void drain(Domain &domain) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(domain.event, &count, sizeof count);
}

void complete(Channel &channel, uint64_t token, uint32_t kind, int32_t status, uint64_t length,
              const Envelope *envelope = nullptr) {
    iccl_completion completion{};
    completion.channel = channel.handle;
    completion.token = token;
    completion.kind = kind;
    completion.status = status;
    completion.length = length;
    if (envelope != nullptr) {
        memcpy(completion.envelope, envelope->data(), envelope->size());
    }
    channel.domain->completions.push_back(completion);
    signal(*channel.domain);
}

// Ends all messages of a channel with `status`.
void end_messages(Channel &channel, int32_t status) {
    for (const auto &message : channel.sends) {
        complete(channel, message.token, ICCL_COMPLETION_KIND_SEND, status, 0);
    }
    for (const auto &message : channel.receives) {
        complete(channel, message.token, ICCL_COMPLETION_KIND_RECEIVE, status, 0);
    }
    channel.sends.clear();
    channel.receives.clear();
}

void fail(Channel &channel, int32_t status) {
    if (channel.failure == ICCL_STATUS_OK) {
        channel.failure = status;
        end_messages(channel, status);
        complete(channel, 0, ICCL_COMPLETION_KIND_CHANNEL_FAILED, status, 0);
    }
}

// Copies a payload from one list of segments to another of the same length.
void copy_payload(const Posted &from, const Posted &to) {
    size_t source = 0;
    uint64_t source_done = 0;
    for (const auto &target : to.segments) {
        uint64_t done = 0;
        while (done < target.length) {
            const auto &segment = from.segments[source];
            const uint64_t left = segment.length - source_done;
            const uint64_t bytes = left < target.length - done ? left : target.length - done;
            memcpy(static_cast<uint8_t *>(target.address) + done,
                   static_cast<const uint8_t *>(segment.address) + source_done, bytes);
            done += bytes;
            source_done += bytes;
            if (source_done == segment.length) {
                source++;
                source_done = 0;
            }
        }
    }
}

// Moves what can be moved from `from` to its peer.
void pump(Channel &from) {
    Channel *to = from.peer;
    while (to != nullptr && from.failure == ICCL_STATUS_OK && to->failure == ICCL_STATUS_OK &&
           !from.sends.empty() && !to->receives.empty()) {
        const Posted send = std::move(from.sends.front());
        const Posted receive = std::move(to->receives.front());
        from.sends.pop_front();
        to->receives.pop_front();
        const uint64_t length = send.length();
        if (send.envelope != receive.envelope || length != receive.length()) {
            complete(*to, receive.token, ICCL_COMPLETION_KIND_RECEIVE, ICCL_STATUS_MISMATCH, length,
                     &send.envelope);
            complete(from, send.token, ICCL_COMPLETION_KIND_SEND, ICCL_STATUS_MISMATCH, 0);
            fail(*to, ICCL_STATUS_MISMATCH);
            fail(from, ICCL_STATUS_MISMATCH);
            return;
        }
        copy_payload(send, receive);
        complete(*to, receive.token, ICCL_COMPLETION_KIND_RECEIVE, ICCL_STATUS_OK, length);
        complete(from, send.token, ICCL_COMPLETION_KIND_SEND, ICCL_STATUS_OK, length);
    }
}

// Whether `dialer` means `waiter`.
bool belong_together(const Channel &dialer, const Channel &waiter) {
    return dialer.dialled == waiter.domain->id && waiter.dialled == 0 &&
           dialer.number == waiter.number && dialer.domain->rank == waiter.peer_rank &&
           waiter.domain->rank == dialer.peer_rank;
}

// Joins a new channel with the other end if that is there.
void join(Channel &channel) {
    for (const auto &[id, domain] : domains) {
        for (const auto &[handle, other] : domain->channels) {
            const bool match =
                belong_together(channel, *other) || belong_together(*other, channel);
            if (!match || other->peer != nullptr || other->failure != ICCL_STATUS_OK) {
                continue;
            }
            if (channel.domain->job_key != domain->job_key) {
                fail(channel, ICCL_STATUS_UNAUTHENTICATED);
                return; // A stranger is not told anything, and does not disturb the other end.
            }
            channel.peer = other.get();
            other->peer = &channel;
            if (channel.link_digest != other->link_digest) {
                fail(channel, ICCL_STATUS_MISMATCH);
                fail(*other, ICCL_STATUS_MISMATCH);
                return;
            }
            signal(*domain);
            pump(channel);
            pump(*other);
            return;
        }
    }
}

// Takes a channel away from its peer.
void leave(Channel &channel) {
    if (channel.peer != nullptr) {
        channel.peer->peer = nullptr;
        fail(*channel.peer, ICCL_STATUS_PEER_LOST);
        channel.peer = nullptr;
    }
}

int32_t capabilities(iccl_transport_capabilities *place, uint64_t size, iccl_error_info *error) {
    return guarded("capabilities", error, [&] {
        iccl_transport_capabilities value{};
        value.name = iccl_text("loopback");
        value.reach = ICCL_REACH_SAME_HOST;
        value.memory_kinds = 1u << ICCL_MEMORY_KIND_HOST;
        value.latency_ns = 500;
        value.bytes_per_us = 10000;
        return iccl_answer(place, size, &value, sizeof value);
    });
}

int32_t open_domain(const iccl_domain_options *given, uint64_t size, uint64_t *handle,
                    iccl_error_info *error) {
    return guarded("open", error, [&]() -> int32_t {
        iccl_domain_options options;
        iccl_read(&options, sizeof options, given, size);
        auto domain = std::make_unique<Domain>();
        domain->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (domain->event < 0) {
            return iccl_fail(error, ICCL_STATUS_TRANSPORT_ERROR, errno, "eventfd failed");
        }
        domain->id = ++last_id;
        domain->rank = options.rank;
        domain->job_key.assign(reinterpret_cast<const char *>(options.job_key.data),
                               options.job_key.length);
        *handle = domain->id;
        domains[domain->id] = std::move(domain);
        return ICCL_STATUS_OK;
    });
}

int32_t address(uint64_t handle, uint8_t *place, uint64_t capacity, uint64_t *length,
                iccl_error_info *error) {
    return guarded("address", error, [&] {
        const uint64_t id = domain_of(handle).id;
        if (capacity < sizeof id) {
            throw Failure(ICCL_STATUS_INVALID_ARGUMENT, "no room for the address");
        }
        memcpy(place, &id, sizeof id);
        *length = sizeof id;
        return ICCL_STATUS_OK;
    });
}

int32_t channel_open(uint64_t handle, const iccl_channel_options *given, uint64_t size,
                     uint64_t *channel_handle, iccl_error_info *error) {
    return guarded("channel_open", error, [&] {
        Domain &domain = domain_of(handle);
        iccl_channel_options options;
        iccl_read(&options, sizeof options, given, size);
        auto channel = std::make_unique<Channel>();
        channel->domain = &domain;
        channel->handle = ++last_id;
        channel->number = options.channel;
        channel->link_digest = options.link_digest;
        channel->peer_rank = options.peer;
        channel->dialled = 0;
        if (options.dial != 0) {
            if (options.address.length != sizeof channel->dialled) {
                throw Failure(ICCL_STATUS_INVALID_ARGUMENT, "this is no address of loopback");
            }
            memcpy(&channel->dialled, options.address.data, sizeof channel->dialled);
        }
        *channel_handle = channel->handle;
        Channel &kept = *channel;
        domain.channels[kept.handle] = std::move(channel);
        join(kept);
        return ICCL_STATUS_OK;
    });
}

int32_t channel_state(uint64_t handle, uint64_t channel_handle, iccl_error_info *error) {
    return guarded("channel_state", error, [&]() -> int32_t {
        const Channel &channel = channel_of(domain_of(handle), channel_handle);
        if (channel.failure != ICCL_STATUS_OK) {
            throw Failure(channel.failure, "the channel failed");
        }
        return channel.peer != nullptr ? ICCL_STATUS_OK : ICCL_STATUS_PENDING;
    });
}

// Posts a message to one of a channel's queues.
template <typename Pump>
int32_t post(uint64_t handle, uint64_t channel_handle, const iccl_message *message,
             std::deque<Posted> Channel::*queue, Pump moved) {
    Channel &channel = channel_of(domain_of(handle), channel_handle);
    if (channel.failure != ICCL_STATUS_OK) {
        throw Failure(channel.failure, "the channel failed before");
    }
    Posted posted;
    posted.token = message->token;
    posted.envelope.assign(message->envelope, message->envelope + ICCL_ENVELOPE_BYTES);
    if (message->segment_count > 0) {
        posted.segments.assign(message->segments, message->segments + message->segment_count);
    }
    (channel.*queue).push_back(std::move(posted));
    moved(channel);
    return ICCL_STATUS_OK;
}

int32_t post_send(uint64_t handle, uint64_t channel, const iccl_message *message,
                  iccl_error_info *error) {
    return guarded("post_send", error, [&] {
        return post(handle, channel, message, &Channel::sends, [](Channel &from) { pump(from); });
    });
}

int32_t post_receive(uint64_t handle, uint64_t channel, const iccl_message *message,
                     iccl_error_info *error) {
    return guarded("post_receive", error, [&] {
        return post(handle, channel, message, &Channel::receives, [](Channel &to) {
            if (to.peer != nullptr) {
                pump(*to.peer);
            }
        });
    });
}

int32_t progress(uint64_t handle, iccl_completion *completions, uint32_t capacity, uint32_t *count,
                 iccl_error_info *error) {
    return guarded("progress", error, [&] {
        Domain &domain = domain_of(handle);
        *count = 0;
        while (*count < capacity && !domain.completions.empty()) {
            completions[(*count)++] = domain.completions.front();
            domain.completions.pop_front();
        }
        if (domain.completions.empty()) {
            drain(domain);
        }
        return ICCL_STATUS_OK;
    });
}

int32_t arm(uint64_t handle, iccl_error_info *error) {
    return guarded("arm", error, [&]() -> int32_t {
        return domain_of(handle).completions.empty() ? ICCL_STATUS_PENDING : ICCL_STATUS_OK;
    });
}

int32_t event_descriptor(uint64_t handle, int32_t *descriptor, iccl_error_info *error) {
    return guarded("event_descriptor", error, [&] {
        *descriptor = domain_of(handle).event;
        return ICCL_STATUS_OK;
    });
}

int32_t wait_for_news(uint64_t handle, uint64_t timeout_us, iccl_error_info *error) {
    int event = -1;
    bool news = false;
    int32_t status = guarded("wait", error, [&] {
        Domain &domain = domain_of(handle);
        if (domain.completions.empty() && !domain.woken) {
            drain(domain);
        } else {
            news = true;
        }
        domain.woken = false;
        event = domain.event;
        return ICCL_STATUS_OK;
    });
    if (status != ICCL_STATUS_OK || news) {
        return status;
    }
    pollfd descriptor{event, POLLIN, 0};
    const uint64_t milliseconds = timeout_us / 1000 + 1;
    poll(&descriptor, 1, milliseconds > 1000000 ? 1000000 : static_cast<int>(milliseconds));
    return guarded("wait", error, [&] {
        domain_of(handle).woken = false;
        return ICCL_STATUS_OK;
    });
}

int32_t wake(uint64_t handle, iccl_error_info *error) {
    return guarded("wake", error, [&] {
        Domain &domain = domain_of(handle);
        domain.woken = true;
        signal(domain);
        return ICCL_STATUS_OK;
    });
}

int32_t quiesce(uint64_t handle, uint64_t channel, uint64_t timeout_us, iccl_error_info *error) {
    (void)timeout_us; // Nothing is ever in flight between two calls.
    return guarded("quiesce", error, [&] {
        Channel &quiet = channel_of(domain_of(handle), channel);
        end_messages(quiet, ICCL_STATUS_ABORTED);
        if (quiet.failure == ICCL_STATUS_OK) {
            quiet.failure = ICCL_STATUS_ABORTED;
        }
        return ICCL_STATUS_OK;
    });
}

int32_t channel_close(uint64_t handle, uint64_t channel_handle, iccl_error_info *error) {
    return guarded("channel_close", error, [&] {
        Domain &domain = domain_of(handle);
        leave(channel_of(domain, channel_handle));
        domain.channels.erase(channel_handle);
        return ICCL_STATUS_OK;
    });
}

int32_t close_domain(uint64_t handle, iccl_error_info *error) {
    return guarded("close", error, [&] {
        for (const auto &[number, channel] : domain_of(handle).channels) {
            leave(*channel);
        }
        domains.erase(handle);
        return ICCL_STATUS_OK;
    });
}

int32_t describe(iccl_plugin_info *place, uint64_t size, iccl_error_info *) {
    static const iccl_setting_spec settings[] = {{
        ICCL_TEXT("throw_in"),
        ICCL_TEXT("string"),
        ICCL_TEXT(""),
        ICCL_TEXT("For tests: the function that throws an exception."),
    }};
    iccl_plugin_info value{};
    value.name = iccl_text("loopback-transport");
    value.version = iccl_text("1.0.0");
    value.vendor = iccl_text("the iccl developers");
    value.description = iccl_text("Messages inside one process, in C++17");
    value.settings = settings;
    value.setting_count = 1;
    return iccl_answer(place, size, &value, sizeof value);
}

int32_t probe(const iccl_host_table *, const iccl_setting_value *given, uint64_t given_count,
              iccl_error_info *error) {
    return guarded("the probe", error, [&] {
        for (uint64_t i = 0; i < given_count; i++) {
            const iccl_bytes key = given[i].key;
            const iccl_bytes value = given[i].value;
            if (std::string(key.data, key.data + key.length) == "throw_in") {
                throw_in.assign(value.data, value.data + value.length);
            }
        }
        if (throw_in == "probe") {
            throw std::runtime_error("asked to throw");
        }
        return ICCL_STATUS_OK;
    });
}

iccl_transport_table make_transport_table() {
    iccl_transport_table table{};
    table.struct_size = sizeof table;
    table.capabilities = capabilities;
    table.open = open_domain;
    table.address = address;
    table.channel_open = channel_open;
    table.channel_state = channel_state;
    table.post_send = post_send;
    table.post_receive = post_receive;
    table.progress = progress;
    table.arm = arm;
    table.event_descriptor = event_descriptor;
    table.wait = wait_for_news;
    table.wake = wake;
    table.quiesce = quiesce;
    table.channel_close = channel_close;
    table.close = close_domain;
    return table;
}

} // namespace

extern "C" ICCL_EXPORT const iccl_plugin_table *iccl_plugin_entry_v1(void) {
    static const iccl_transport_table transport = make_transport_table();
    static const iccl_plugin_table plugin = [] {
        iccl_plugin_table table{};
        table.struct_size = sizeof table;
        table.abi_major = ICCL_ABI_MAJOR;
        table.abi_minor = ICCL_ABI_MINOR;
        table.describe = describe;
        table.probe = probe;
        table.transport = &transport;
        return table;
    }();
    return &plugin;
}
