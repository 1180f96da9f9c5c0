/*
 * A device plugin in C11: one device over host memory, whose streams do their work at once.
 *
 * The smallest plugin that is complete: it shows the note, the door, a table with some functions
 * absent, errors with words, and settings.
 */
#include <iccl_plugin.h>

#include <errno.h>
#include <stdlib.h>

ICCL_PLUGIN_NOTE("minimal-device", "1.0.0", ICCL_FAMILY_DEVICE)

/* The only device has this handle; 0 is never one. */
#define DEVICE 1u

/* Bytes to which memory is aligned. */
#define ALIGNMENT 64u

/* Most streams at a time. Stream handles are 1 to MOST_STREAMS. */
#define MOST_STREAMS 64u

static uint8_t stream_in_use[MOST_STREAMS + 1];

static int32_t no_such_device(iccl_error_info *error) {
    return iccl_fail(error, ICCL_STATUS_INVALID_ARGUMENT, 0, "this is no device of minimal-device");
}

static int32_t check_stream(uint64_t stream, iccl_error_info *error) {
    if (stream > MOST_STREAMS || (stream != 0 && !stream_in_use[stream])) {
        return iccl_fail(error, ICCL_STATUS_INVALID_ARGUMENT, 0, "this is no stream");
    }
    return ICCL_STATUS_OK;
}

static int32_t count(uint32_t *devices, iccl_error_info *error) {
    (void)error;
    *devices = 1;
    return ICCL_STATUS_OK;
}

static int32_t info(uint32_t index, iccl_device_info *place, uint64_t size, iccl_error_info *error) {
    iccl_device_info value = {0};
    if (index != 0) {
        return no_such_device(error);
    }
    value.name = iccl_text("minimal device");
    value.numa_node = -1;
    return iccl_answer(place, size, &value, sizeof value);
}

static int32_t capabilities(uint32_t index, iccl_device_capabilities *place, uint64_t size,
                            iccl_error_info *error) {
    iccl_device_capabilities value = {0};
    if (index != 0) {
        return no_such_device(error);
    }
    value.stream_to_host = ICCL_STREAM_TO_HOST_HOST_FUNCTION;
    value.host_accessible = 1;
    return iccl_answer(place, size, &value, sizeof value);
}

static int32_t open_device(uint32_t index, uint64_t *device, iccl_error_info *error) {
    if (index != 0) {
        return no_such_device(error);
    }
    *device = DEVICE;
    return ICCL_STATUS_OK;
}

static int32_t close_device(uint64_t device, iccl_error_info *error) {
    return device == DEVICE ? ICCL_STATUS_OK : no_such_device(error);
}

static int32_t allocate(uint64_t device, uint64_t bytes, uint32_t kind, void **pointer,
                        iccl_error_info *error) {
    uint64_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (device != DEVICE) {
        return no_such_device(error);
    }
    if (kind > ICCL_MEMORY_KIND_DEVICE) {
        return iccl_fail(error, ICCL_STATUS_NOT_SUPPORTED, 0, "unknown kind of memory");
    }
    *pointer = rounded < bytes ? NULL : aligned_alloc(ALIGNMENT, rounded > 0 ? rounded : ALIGNMENT);
    if (*pointer == NULL) {
        return iccl_fail(error, ICCL_STATUS_OUT_OF_RESOURCES, ENOMEM, "no memory left");
    }
    return ICCL_STATUS_OK;
}

static int32_t free_memory(uint64_t device, void *pointer, iccl_error_info *error) {
    if (device != DEVICE) {
        return no_such_device(error);
    }
    free(pointer);
    return ICCL_STATUS_OK;
}

static int32_t copy(uint64_t device, uint64_t stream, void *destination, uint32_t destination_kind,
                    const void *source, uint32_t source_kind, uint64_t bytes,
                    iccl_error_info *error) {
    (void)destination_kind;
    (void)source_kind;
    if (device != DEVICE) {
        return no_such_device(error);
    }
    if (check_stream(stream, error) != ICCL_STATUS_OK) {
        return ICCL_STATUS_INVALID_ARGUMENT;
    }
    memcpy(destination, source, bytes);
    return ICCL_STATUS_OK;
}

static int32_t stream_create(uint64_t device, uint64_t *stream, iccl_error_info *error) {
    if (device != DEVICE) {
        return no_such_device(error);
    }
    for (uint64_t handle = 1; handle <= MOST_STREAMS; handle++) {
        if (!stream_in_use[handle]) {
            stream_in_use[handle] = 1;
            *stream = handle;
            return ICCL_STATUS_OK;
        }
    }
    return iccl_fail(error, ICCL_STATUS_OUT_OF_RESOURCES, 0, "64 streams are all there are");
}

static int32_t stream_destroy(uint64_t device, uint64_t stream, iccl_error_info *error) {
    if (device != DEVICE) {
        return no_such_device(error);
    }
    if (stream == 0 || check_stream(stream, error) != ICCL_STATUS_OK) {
        return iccl_fail(error, ICCL_STATUS_INVALID_ARGUMENT, 0, "this is no stream");
    }
    stream_in_use[stream] = 0;
    return ICCL_STATUS_OK;
}

/* Work is done when it is enqueued, so a stream is always through. */
static int32_t stream_query(uint64_t device, uint64_t stream, iccl_error_info *error) {
    return device == DEVICE ? check_stream(stream, error) : no_such_device(error);
}

static int32_t stream_synchronize(uint64_t device, uint64_t stream, uint64_t timeout_us,
                                  iccl_error_info *error) {
    (void)timeout_us;
    return stream_query(device, stream, error);
}

static int32_t host_function(uint64_t device, uint64_t stream, iccl_host_function function,
                             void *user, iccl_error_info *error) {
    int32_t status = stream_query(device, stream, error);
    if (status == ICCL_STATUS_OK) {
        function(user);
    }
    return status;
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
    .copy = copy,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_query = stream_query,
    .stream_synchronize = stream_synchronize,
    .host_function = host_function,
};

static const iccl_setting_spec settings[] = {{
    .key = ICCL_TEXT("devices"),
    .kind = ICCL_TEXT("integer"),
    .default_text = ICCL_TEXT("1"),
    .description = ICCL_TEXT("Devices to pretend to have: 0 or 1."),
}};

static int32_t describe(iccl_plugin_info *place, uint64_t size, iccl_error_info *error) {
    iccl_plugin_info value = {0};
    (void)error;
    value.name = iccl_text("minimal-device");
    value.version = iccl_text("1.0.0");
    value.vendor = iccl_text("the iccl developers");
    value.description = iccl_text("Host memory as a device, in C11");
    value.settings = settings;
    value.setting_count = 1;
    return iccl_answer(place, size, &value, sizeof value);
}

static int text_equals(iccl_bytes bytes, const char *text) {
    return bytes.length == strlen(text) && memcmp(bytes.data, text, bytes.length) == 0;
}

static int32_t probe(const iccl_host_table *host, const iccl_setting_value *given,
                     uint64_t given_count, iccl_error_info *error) {
    for (uint64_t i = 0; i < given_count; i++) {
        if (text_equals(given[i].key, "devices") && text_equals(given[i].value, "0")) {
            return iccl_fail(error, ICCL_STATUS_NO_DEVICE, 0, "the setting `devices` is 0");
        }
    }
    if (host != NULL && host->log != NULL) {
        host->log(host->context, ICCL_LOG_LEVEL_INFO, iccl_text("minimal_device"),
                  iccl_text("one device over host memory"));
    }
    return ICCL_STATUS_OK;
}

static const iccl_plugin_table plugin_table = {
    .struct_size = sizeof(iccl_plugin_table),
    .abi_major = ICCL_ABI_MAJOR,
    .abi_minor = ICCL_ABI_MINOR,
    .describe = describe,
    .probe = probe,
    .device = &device_table,
};

ICCL_EXPORT const iccl_plugin_table *iccl_plugin_entry_v1(void) {
    return &plugin_table;
}
