/*
 * A device plugin with at most one fault, which is chosen when it is compiled: -DFAULT_… (the list is
 * in the #ifs below), -DNAME and -DNOTE_NAME for what it calls itself, -DMARKER for a file that it
 * makes as soon as it is loaded.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <iccl_plugin.h>

#ifndef NAME
#define NAME "corpus"
#endif
#ifndef NOTE_NAME
#define NOTE_NAME NAME
#endif
#ifndef VERSION
#define VERSION "1.0.0"
#endif
#ifndef FAMILIES
#define FAMILIES ICCL_FAMILY_DEVICE
#endif

#ifndef FAULT_NO_NOTE
ICCL_PLUGIN_NOTE(NOTE_NAME, VERSION, FAMILIES)
#endif

#ifdef FAULT_UNDEFINED_SYMBOL
extern int acme_driver_version_2(void);
int use_it(void) { return acme_driver_version_2(); }
#endif

#ifdef FAULT_MISSING_DEPENDENCY
extern int acme_gone(void);
int use_it(void) { return acme_gone(); }
#endif

#ifdef MARKER
__attribute__((constructor)) static void leave_marker(void) {
    close(open(MARKER, O_CREAT | O_WRONLY, 0600));
}
#endif

#ifdef FAULT_CRASHING_CONSTRUCTOR
__attribute__((constructor)) static void crash_at_once(void) { raise(SIGILL); }
#endif

static int32_t count(uint32_t *devices, iccl_error_info *error) {
    (void)error;
#if defined(FAULT_COUNTS_NONE)
    *devices = 0;
#elif defined(FAULT_COUNTS_TOO_MANY)
    *devices = 4000000000u;
#else
    *devices = 1;
#endif
    return ICCL_STATUS_OK;
}

static int32_t info(uint32_t index, iccl_device_info *place, uint64_t size, iccl_error_info *error) {
    iccl_device_info value = {0};
    (void)index;
#ifdef FAULT_FACTS
    return iccl_fail(error, ICCL_STATUS_DEVICE_ERROR, 999, "the driver lost the card");
#endif
    (void)error;
    value.name = iccl_text("corpus device");
    value.numa_node = -1;
    return iccl_answer(place, size, &value, sizeof value);
}

static int32_t capabilities(uint32_t index, iccl_device_capabilities *place, uint64_t size,
                            iccl_error_info *error) {
    iccl_device_capabilities value = {0};
    (void)index, (void)error;
    return iccl_answer(place, size, &value, sizeof value);
}

static int32_t open_device(uint32_t index, uint64_t *device, iccl_error_info *error) {
    (void)index, (void)error;
    *device = 1;
    return ICCL_STATUS_OK;
}

static int32_t close_device(uint64_t device, iccl_error_info *error) {
    (void)device, (void)error;
    return ICCL_STATUS_OK;
}

static int32_t allocate(uint64_t device, uint64_t bytes, uint32_t kind, void **pointer,
                        iccl_error_info *error) {
    (void)device, (void)kind, (void)error;
    *pointer = aligned_alloc(64, (bytes + 64) / 64 * 64);
    return ICCL_STATUS_OK;
}

static int32_t free_memory(uint64_t device, void *pointer, iccl_error_info *error) {
    (void)device, (void)error;
    free(pointer);
    return ICCL_STATUS_OK;
}

static int32_t copy(uint64_t device, uint64_t stream, void *destination, uint32_t destination_kind,
                    const void *source, uint32_t source_kind, uint64_t bytes,
                    iccl_error_info *error) {
    (void)device, (void)stream, (void)destination_kind, (void)source_kind, (void)error;
#ifdef FAULT_PANICS_IN_COPY
    return iccl_fail(error, ICCL_STATUS_PANIC, 0, "copy went wrong");
#endif
    memcpy(destination, source, bytes);
    return ICCL_STATUS_OK;
}

static int32_t stream_create(uint64_t device, uint64_t *stream, iccl_error_info *error) {
    (void)device, (void)error;
    *stream = 1;
    return ICCL_STATUS_OK;
}

static int32_t stream_destroy(uint64_t device, uint64_t stream, iccl_error_info *error) {
    (void)device, (void)stream, (void)error;
    return ICCL_STATUS_OK;
}

static int32_t stream_query(uint64_t device, uint64_t stream, iccl_error_info *error) {
    return stream_destroy(device, stream, error);
}

static int32_t stream_synchronize(uint64_t device, uint64_t stream, uint64_t timeout_us,
                                  iccl_error_info *error) {
    (void)timeout_us;
    return stream_destroy(device, stream, error);
}

static const iccl_device_table device_table = {
    .struct_size = sizeof(iccl_device_table),
    .count = count,
    .info = info,
    .capabilities = capabilities,
    .open = open_device,
    .close = close_device,
    .allocate = allocate,
    .free = free_memory,
#ifndef FAULT_NULL_COPY
    .copy = copy,
#endif
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_query = stream_query,
#ifndef FAULT_NULL_SYNCHRONIZE
    .stream_synchronize = stream_synchronize,
#endif
};

static const iccl_setting_spec settings[] = {
    {ICCL_TEXT("buffer"), ICCL_TEXT("bytes"), ICCL_TEXT("4096"), ICCL_TEXT("A size in bytes.")},
    {ICCL_TEXT("patience"), ICCL_TEXT("duration"), ICCL_TEXT("1000"), ICCL_TEXT("In microseconds.")},
};

static int32_t describe(iccl_plugin_info *place, uint64_t size, iccl_error_info *error) {
    iccl_plugin_info value = {0};
#ifdef FAULT_PANICS_IN_DESCRIBE
    return iccl_fail(error, ICCL_STATUS_PANIC, 0, "no words for it");
#endif
    (void)error;
    value.name = iccl_text(NAME);
    value.version = iccl_text(VERSION);
    value.vendor = iccl_text("the corpus");
    value.description = iccl_text("a plugin for tests");
    value.settings = settings;
    value.setting_count = sizeof settings / sizeof settings[0];
    return iccl_answer(place, size, &value, sizeof value);
}

static int32_t probe(const iccl_host_table *host, const iccl_setting_value *given,
                     uint64_t given_count, iccl_error_info *error) {
    (void)host, (void)given, (void)given_count, (void)error;
#if defined(FAULT_PANICS_IN_PROBE)
    return iccl_fail(error, ICCL_STATUS_PANIC, 0, "index out of bounds");
#elif defined(FAULT_HANGS_IN_PROBE)
    for (;;) {
        pause();
    }
#elif defined(FAULT_CRASHES_IN_PROBE)
    fprintf(stderr, "acme driver: about to\ndereference null\n");
    *(volatile int *)0 = 1;
#elif defined(FAULT_EXITS_IN_PROBE)
    exit(3);
#elif defined(FAULT_PRINTS_IN_PROBE)
    for (int line = 0; line < 100000; line++) {
        printf("{\"fine\": {\"support\": [], \"struck\": []}}\n");
    }
    fflush(stdout);
#elif defined(FAULT_NO_DEVICE)
    return iccl_fail(error, ICCL_STATUS_NO_DEVICE, 0, "no acme card in this machine");
#elif defined(FAULT_LIBRARY_MISSING)
    return iccl_fail(error, ICCL_STATUS_LIBRARY_MISSING, 0, "libacme.so.3: not found");
#elif defined(FAULT_PROBE)
    return iccl_fail(error, ICCL_STATUS_DEVICE_ERROR, 802, "acmeInit failed");
#elif defined(FAULT_TELLS_SETTINGS)
    char text[256] = "";
    for (uint64_t i = 0; i < given_count; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%.*s=%.*s;",
                 (int)given[i].key.length, (const char *)given[i].key.data,
                 (int)given[i].value.length, (const char *)given[i].value.data);
    }
    return iccl_fail(error, ICCL_STATUS_DEVICE_ERROR, 0, text);
#elif defined(FAULT_TALKS)
    host->log(host->context, ICCL_LOG_LEVEL_WARN, iccl_text("corpus::driver"),
              iccl_text("fan \xff\n speed"));
#endif
    return ICCL_STATUS_OK;
}

#ifdef FAULT_SELF_TEST
static int32_t self_test(iccl_error_info *error) {
    return iccl_fail(error, ICCL_STATUS_INTERNAL, 0, "2 + 2 came to 5");
}
#endif

static const iccl_plugin_table plugin_table = {
    .struct_size = sizeof(iccl_plugin_table),
#ifdef FAULT_ROOT_MAJOR
    .abi_major = ICCL_ABI_MAJOR + 1,
#else
    .abi_major = ICCL_ABI_MAJOR,
#endif
    .abi_minor = ICCL_ABI_MINOR,
    .describe = describe,
#ifndef FAULT_NULL_PROBE
    .probe = probe,
#endif
#ifdef FAULT_SELF_TEST
    .self_test = self_test,
#endif
    .device = &device_table,
};

#ifdef FAULT_NO_ENTRY
const iccl_plugin_table *unused(void) { return &plugin_table; }
#else
ICCL_EXPORT const iccl_plugin_table *iccl_plugin_entry_v1(void) {
#ifdef FAULT_NULL_TABLE
    return NULL;
#else
    return &plugin_table;
#endif
}
#endif
