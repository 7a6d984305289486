/* Copies what librdkafka has fetched into columns, without a Python object for each record.
 *
 * `record_columns.py` calls this by `ctypes`. The messages come from librdkafka's public interface: `message` is its
 * `rd_kafka_message_t`, as rdkafka.h defines it.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef LAPSE_SOURCE
#define LAPSE_SOURCE 0
#endif

typedef struct {
    int error;
    void *topic;
    int32_t partition;
    void *value;
    size_t value_size;
    void *key;
    size_t key_size;
    int64_t offset;
    void *own;
} message;

typedef int64_t (*timestamp_of)(const message *, int *kind);
typedef void (*destroy)(message *);

/* The checksum of the source that this was built from. */
int64_t lapse_source(void) { return LAPSE_SOURCE; }

/* Move the messages that report an error to `faulty`, with the number of records before each in `places`.
 * Return how many records are left. `bytes` becomes the size of their keys and values. */
int64_t lapse_sound(message **messages, int64_t count, message **faulty, int64_t *places, int64_t *bytes)
{
    int64_t sound = 0, found = 0, size = 0;
    for (int64_t at = 0; at < count; at++) {
        message *one = messages[at];
        if (one->error) {
            places[found] = sound;
            faulty[found++] = one;
            continue;
        }
        size += (int64_t)(one->key_size + one->value_size);
        messages[sound++] = one;
    }
    *bytes = size;
    return sound;
}

/* Copy all keys to `data`, and then all values. A bound is where a key or value begins; one more is where the last
 * one ends. Null is 1 in `nulls`: for all keys first, then for all values. Return how many are null. */
int64_t lapse_columns(message **messages, int64_t count, char *data, int64_t *offsets, int64_t *timestamps,
                      int64_t *key_bounds, int64_t *value_bounds, char *nulls, timestamp_of timestamp)
{
    int64_t at, end = 0, null = 0;
    for (at = 0; at < count; at++) {
        message *one = messages[at];
        int kind;
        offsets[at] = one->offset;
        timestamps[at] = timestamp(one, &kind);
        key_bounds[at] = end;
        nulls[at] = one->key == NULL;
        null += nulls[at];
        if (one->key_size)
            memcpy(data + end, one->key, one->key_size);
        end += (int64_t)one->key_size;
    }
    key_bounds[count] = end;
    for (at = 0; at < count; at++) {
        message *one = messages[at];
        value_bounds[at] = end;
        nulls[count + at] = one->value == NULL;
        null += nulls[count + at];
        if (one->value_size)
            memcpy(data + end, one->value, one->value_size);
        end += (int64_t)one->value_size;
    }
    value_bounds[count] = end;
    return null;
}

/* Give messages back to librdkafka. */
void lapse_free(message **messages, int64_t count, destroy free)
{
    for (int64_t at = 0; at < count; at++)
        free(messages[at]);
}
