
/* ---- what a plugin in C or C++ needs beyond the definitions ---- */

/* Makes a function visible outside of the plugin's `.so`, and nothing else. */
#define ICCL_EXPORT __attribute__((visibility("default")))

/*
 * The C door: the one symbol that a plugin has to define, with ICCL_EXPORT before it.
 * It gives a static table.
 */
ICCL_EXPORT const iccl_plugin_table *iccl_plugin_entry_v1(void);

/*
 * Puts the ELF note into the plugin, by which iccl knows it without loading it. Once in one source
 * file, outside of functions:
 *
 *     ICCL_PLUGIN_NOTE("acme", "1.2.0", ICCL_FAMILY_DEVICE | ICCL_FAMILY_TRANSPORT)
 */
#define ICCL_PLUGIN_NOTE(plugin_name, plugin_version, plugin_families)                       \
    __attribute__((used, section(ICCL_NOTE_SECTION), aligned(4)))                            \
    static const iccl_plugin_note iccl_plugin_note_v1 = {                                    \
        5,                                                                                   \
        sizeof(iccl_plugin_note) - 20,                                                       \
        ICCL_NOTE_TYPE,                                                                      \
        {'i', 'c', 'c', 'l', 0, 0, 0, 0},                                                    \
        ICCL_ABI_MAJOR,                                                                      \
        0,                                                                                   \
        ICCL_ABI_MINOR,                                                                      \
        (plugin_families),                                                                   \
        plugin_name,                                                                         \
        plugin_version,                                                                      \
        "c header 1.0"};

/* A literal as the tables want it, to initialise a static with. */
#define ICCL_TEXT(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}

/* A text that lives for ever, as the tables want it. */
static inline iccl_bytes iccl_text(const char *text) {
    iccl_bytes bytes;
    bytes.data = (const uint8_t *)text;
    bytes.length = strlen(text);
    return bytes;
}

/* Says why a call fails, if the caller wants to know. `text` is one line of UTF-8. Gives `status`. */
static inline int32_t iccl_fail(iccl_error_info *error, int32_t status, int64_t vendor_code,
                                const char *text) {
    if (error != NULL) {
        size_t length = strlen(text);
        if (length > ICCL_ERROR_MESSAGE_BYTES) {
            length = ICCL_ERROR_MESSAGE_BYTES;
            /* Cut between characters: bytes 10xxxxxx continue one. */
            while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80) {
                length--;
            }
        }
        error->vendor_code = vendor_code;
        error->message_length = (uint32_t)length;
        memcpy(error->message, text, length);
    }
    return status;
}

/* Answers with a struct that may grow: writes at most `size` bytes, the caller's idea of it. */
static inline int32_t iccl_answer(void *place, uint64_t size, const void *value,
                                  size_t value_size) {
    memcpy(place, value, size < value_size ? (size_t)size : value_size);
    return ICCL_STATUS_OK;
}

/* Reads an argument that may grow: what the caller does not have is zero. */
static inline void iccl_read(void *value, size_t value_size, const void *argument, uint64_t size) {
    memset(value, 0, value_size);
    memcpy(value, argument, size < value_size ? (size_t)size : value_size);
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ICCL_PLUGIN_H */
