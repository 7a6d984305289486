// A worker for any queue of lapse: it runs a command for each message, with the value on its standard input.
//
//     java -cp 'lib/*' Worker.java orders ./handle --and options
//
// It needs kafka-clients and jackson-databind, and nothing of lapse: docs/protocol.md is all that it knows.
// Java 17 or newer. The brokers are those of KAFKA_BOOTSTRAP_SERVERS (localhost:9092 by default).

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.OutputStream;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Worker {
    static final ObjectMapper JSON = new ObjectMapper();
    static final int HEARTBEAT_TIMEOUT_MS = 30_000;

    final String queue;
    final List<String> handler;
    final String me = "worker-" + UUID.randomUUID();
    final Map<Integer, Long> epochs = new HashMap<>();
    final KafkaProducer<byte[], byte[]> producer;
    final KafkaConsumer<byte[], byte[]> consumer;
    final List<Integer> partitions;

    Worker(String queue, List<String> handler) {
        this.queue = queue;
        this.handler = handler;
        String servers = System.getenv().getOrDefault("KAFKA_BOOTSTRAP_SERVERS", "localhost:9092");
        producer = new KafkaProducer<>(
                Map.of("bootstrap.servers", servers, "acks", "all"), new ByteArraySerializer(), new ByteArraySerializer());
        consumer = new KafkaConsumer<>(
                Map.of("bootstrap.servers", servers, "isolation.level", "read_committed"),
                new ByteArrayDeserializer(),
                new ByteArrayDeserializer());
        partitions = consumer.partitionsFor(deliveries()).stream().map(one -> one.partition()).sorted().toList();
    }

    String deliveries() {
        return "lapse." + queue + ".deliveries";
    }

    /** Sends a command to a shard, and waits until Kafka has it. */
    void say(int partition, String command, Map<String, Object> fields) {
        Map<String, Object> all = new LinkedHashMap<>(Map.of("command", command, "subscription", me, "id", command));
        all.putAll(fields);
        try {
            byte[] value = JSON.writeValueAsBytes(all);
            producer.send(new ProducerRecord<>("lapse." + queue + ".commands", partition, null, value)).get();
        } catch (IOException | ExecutionException | InterruptedException error) {
            throw new IllegalStateException(command + " was not written", error);
        }
    }

    void subscribe(int partition) {
        say(partition, "subscribe", Map.of("max_backlog", 1, "heartbeat_timeout_ms", HEARTBEAT_TIMEOUT_MS));
    }

    void heartbeats() {
        try {
            while (true) {
                Thread.sleep(HEARTBEAT_TIMEOUT_MS / 3);
                for (int partition : partitions) {
                    say(partition, "heartbeat", Map.of("answer", "errors"));
                }
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        } catch (IllegalStateException error) {
            error.printStackTrace(); // without heartbeats the messages return to the queue
            System.exit(1);
        }
    }

    /** Runs the handler; whether it ended well before the lease does. */
    boolean handled(byte[] value, long patienceMs) throws IOException, InterruptedException {
        Process process = new ProcessBuilder(handler)
                .redirectOutput(ProcessBuilder.Redirect.INHERIT)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        CompletableFuture.runAsync(() -> {
            try (OutputStream input = process.getOutputStream()) {
                input.write(value == null ? new byte[0] : value);
            } catch (IOException error) {
                // the handler has ended without reading all of it
            }
        });
        if (!process.waitFor(patienceMs, TimeUnit.MILLISECONDS)) {
            process.destroyForcibly().waitFor();
            return false;
        }
        return process.exitValue() == 0;
    }

    void work(int partition, long epoch, Map<String, String> told, byte[] value) throws IOException, InterruptedException {
        String until = told.get("lapse-lease-until-ms"); // absent on an at-most-once queue
        long leftMs = until == null ? Long.MAX_VALUE / 2 : Long.parseLong(until) - System.currentTimeMillis();
        if (leftMs <= 0) {
            return; // the lease is over: the message is somebody else's
        }
        String deadline = told.get("lapse-expires-at-ms"); // absent without one
        boolean counts = deadline != null && !told.containsKey("lapse-lifetimes"); // else the queue ignores lifetimes
        boolean expired = counts && Long.parseLong(deadline) <= System.currentTimeMillis();
        boolean done = !expired && handled(value, leftMs); // a cancel of an expired message ends its life
        String name = told.get("lapse-bookmark") + "#" + told.get("lapse-delivery-count") + "@" + epoch;
        Map<String, Object> fields = new HashMap<>(Map.of("bookmarks", List.of(name), "answer", "errors"));
        if (!done) {
            fields.put("delay_ms", 1000);
        }
        say(partition, done ? "acknowledge" : "cancel", fields);
    }

    void read(ConsumerRecord<byte[], byte[]> record) throws IOException, InterruptedException {
        Map<String, String> told = new HashMap<>();
        for (Header header : record.headers()) { // lapse's own come first
            byte[] value = header.value();
            told.putIfAbsent(header.key(), value == null ? "" : new String(value, "UTF-8"));
        }
        int partition = record.partition();
        long epoch = Long.parseLong(told.getOrDefault("lapse-epoch", "0"));
        if (epoch < epochs.getOrDefault(partition, 0L)) {
            return; // written by a shard's former owner
        }
        epochs.put(partition, epoch);
        if (!me.equals(told.get("lapse-subscription"))) {
            return;
        }
        if ("delivery".equals(told.get("lapse-kind"))) {
            work(partition, epoch, told, record.value());
        } else if ("answer".equals(told.get("lapse-kind"))) {
            JsonNode answer = JSON.readTree(record.value());
            switch (answer.path("code").asText()) {
                case "" -> {}
                case "deleted" -> {
                    System.err.println(answer.path("error").asText());
                    System.exit(1);
                }
                case "unknown_subscription" -> subscribe(partition);
                default -> System.err.println(answer.path("error").asText());
            }
        }
    }

    void run() throws IOException, InterruptedException {
        List<TopicPartition> places = partitions.stream().map(one -> new TopicPartition(deliveries(), one)).toList();
        consumer.assign(places);
        consumer.seekToEnd(places);
        places.forEach(consumer::position); // first stand at the end, then subscribe
        partitions.forEach(this::subscribe);
        Thread beating = new Thread(this::heartbeats);
        beating.setDaemon(true);
        beating.start();
        while (true) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                read(record);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length < 2) {
            System.err.println("java -cp 'lib/*' Worker.java QUEUE COMMAND [ARGUMENT...]");
            System.exit(2);
        }
        new Worker(arguments[0], Arrays.asList(arguments).subList(1, arguments.length)).run();
    }
}
