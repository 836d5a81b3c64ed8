import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Java's clients of the workload, until stdin ends: two appenders, a copier and a reader of committed records. They print the
 *  history as JSON lines. Arguments: bootstrap servers, name of the run, seed, partitions of a topic. */
public class TransactionClients {
    static final double ABANDONED = 0.03;
    static final double ABORTS = 0.15;
    static final long BEGUN = System.nanoTime();
    static volatile boolean over = false;
    static String servers;
    static String run;
    static long seed;
    static int partitions;

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        run = arguments[1];
        seed = Long.parseLong(arguments[2]);
        partitions = Integer.parseInt(arguments[3]);
        List<Thread> threads = List.of(
            new Thread(() -> repeat("appender-java-0", TransactionClients::append)),
            new Thread(() -> repeat("appender-java-1", TransactionClients::append)),
            new Thread(() -> repeat("copier-java-0", TransactionClients::copy)),
            new Thread(() -> repeat("reader-java-committed", TransactionClients::read)));
        for (Thread thread : threads) {
            thread.start();
        }
        while (System.in.read() != -1) {
        }
        over = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /** One client's name, its random numbers, and its count of attempts. */
    static class Client {
        final String name;
        final Random random;
        int lives;
        int count;

        Client(String name) {
            this.name = name;
            this.random = new Random(seed * 31 + name.hashCode());
        }

        Properties settings() {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", servers);
            settings.put("client.id", name);
            settings.put("request.timeout.ms", "10000");
            settings.put("reconnect.backoff.max.ms", "1000");
            settings.put("metadata.max.age.ms", "5000");
            settings.put("key.serializer", StringSerializer.class.getName());
            settings.put("value.serializer", StringSerializer.class.getName());
            settings.put("key.deserializer", StringDeserializer.class.getName());
            settings.put("value.deserializer", StringDeserializer.class.getName());
            settings.put("enable.auto.commit", "false");
            settings.put("auto.offset.reset", "earliest");
            settings.put("isolation.level", "read_committed");
            return settings;
        }

        KafkaProducer<String, String> producer() {
            Properties settings = settings();
            settings.put("transactional.id", run + "-" + name);
            settings.put("transaction.timeout.ms", "20000");
            settings.put("delivery.timeout.ms", "20000");
            settings.put("max.block.ms", "20000");
            settings.put("linger.ms", "5");
            KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
            try {
                producer.initTransactions();
            } catch (KafkaException error) {
                producer.close(Duration.ZERO);
                throw error;
            }
            return producer;
        }
    }

    /** A record on its way. */
    static class Sent {
        final String topic;
        final int partition;
        final String value;
        final String copyOf;
        Future<RecordMetadata> result;

        Sent(String topic, int partition, String value, String copyOf) {
            this.topic = topic;
            this.partition = partition;
            this.value = value;
            this.copyOf = copyOf;
        }

        String json() {
            String offset = "null";
            if (result != null && result.isDone()) {
                try {
                    offset = Long.toString(result.get().offset());
                } catch (ExecutionException | InterruptedException error) {
                    offset = "null";
                }
            }
            return String.format("{\"partition\":\"%s/%d\",\"value\":\"%s\",\"offset\":%s,\"copy_of\":\"%s\"}",
                topic, partition, value, offset.equals("-1") ? "null" : offset, copyOf);
        }
    }

    /** The producer cannot go on: its successor takes its place. */
    static class Reopen extends RuntimeException {
        Reopen(String message) {
            super(message);
        }
    }

    interface Work {
        void of(Client client) throws Exception;
    }

    static double now() {
        return (System.nanoTime() - BEGUN) / 1e9;
    }

    static synchronized void print(String line) {
        System.out.println(line);
    }

    static void repeat(String name, Work work) {
        Client client = new Client(name);
        while (!over) {
            try {
                client.lives++;
                work.of(client);
            } catch (Exception error) {
                System.err.println(name + ": " + error);
                pause(200);
            }
        }
    }

    static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    static void append(Client client) {
        KafkaProducer<String, String> producer = client.producer();
        try {
            while (!over) {
                pause(client.random.nextInt(50));
                List<Sent> records = new ArrayList<>();
                client.count++;
                int size = 2 + client.random.nextInt(5);
                for (int place = 0; place < size; place++) {
                    String value = client.name + "." + client.count + "." + place;
                    records.add(new Sent(run + "-source", client.random.nextInt(partitions), value, ""));
                }
                transact(client, producer, records, null, null);
            }
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    static void copy(Client client) {
        Properties settings = client.settings();
        settings.put("group.id", run + "-copiers");
        settings.put("max.poll.records", "5");
        settings.put("session.timeout.ms", "6000");
        settings.put("max.poll.interval.ms", "10000");
        KafkaProducer<String, String> producer = client.producer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(run + "-source"));
            while (!over) {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                List<Sent> records = new ArrayList<>();
                client.count++;
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    String value = client.name + "." + client.count + "." + records.size();
                    String source = record.value().split(" ")[0];
                    records.add(new Sent(run + "-sink", client.random.nextInt(partitions), value, source));
                    TopicPartition place = new TopicPartition(record.topic(), record.partition());
                    offsets.put(place, new OffsetAndMetadata(record.offset() + 1));
                }
                if (!records.isEmpty() && !transact(client, producer, records, offsets, consumer)) {
                    consumer.committed(consumer.assignment()).forEach((place, position) ->
                        consumer.seek(place, position == null ? 0 : position.offset()));
                }
            }
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    static void read(Client client) {
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(client.settings())) {
            List<TopicPartition> places = new ArrayList<>();
            for (int partition = 0; partition < partitions; partition++) {
                places.add(new TopicPartition(run + "-source", partition));
                places.add(new TopicPartition(run + "-sink", partition));
            }
            consumer.assign(places);
            consumer.seekToBeginning(places);
            while (!over) {
                List<String> records = new ArrayList<>();
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    records.add(String.format("[\"%s/%d\",%d,\"%s\"]",
                        record.topic(), record.partition(), record.offset(), record.value().split(" ")[0]));
                }
                if (!records.isEmpty()) {
                    print(String.format("{\"kind\":\"Poll\",\"process\":\"%s#%d\",\"committed\":true,\"records\":[%s]}",
                        client.name, client.lives, String.join(",", records)));
                }
            }
        }
    }

    /** Returns true if the transaction is committed. Throws Reopen if the producer cannot go on. */
    static boolean transact(Client client, KafkaProducer<String, String> producer, List<Sent> records,
            Map<TopicPartition, OffsetAndMetadata> offsets, KafkaConsumer<String, String> consumer) {
        double begin = now();
        double intent = client.random.nextDouble();
        String outcome = "fail"; // as long as nobody has asked for a commit
        String failure = "";
        try {
            producer.beginTransaction();
            for (Sent sent : records) {
                String value = String.format("%-" + (300 + client.random.nextInt(2700)) + "s", sent.value + " " + sent.copyOf);
                sent.result = producer.send(new ProducerRecord<>(sent.topic, sent.partition, null, value));
            }
            if (offsets != null) {
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            }
            if (intent < ABANDONED) {
                throw new Reopen("the transaction is abandoned");
            }
            if (intent < ABANDONED + ABORTS) {
                if (client.random.nextBoolean()) {
                    producer.flush();
                }
                producer.abortTransaction();
                return false;
            }
            producer.flush();
            for (Sent sent : records) {
                sent.result.get();
            }
            outcome = "info";
            commit(producer);
            outcome = "ok";
            return true;
        } catch (KafkaException | ExecutionException | InterruptedException error) {
            failure = error.getClass().getSimpleName();
            try {
                producer.abortTransaction();
            } catch (KafkaException fatal) {
                throw new Reopen(failure + ", then " + fatal);
            }
            return false;
        } finally {
            List<String> writes = new ArrayList<>();
            for (Sent sent : records) {
                writes.add(sent.json());
            }
            print(String.format("{\"kind\":\"Transaction\",\"process\":\"%s\",\"outcome\":\"%s\",\"writes\":[%s],\"atomic\":true,"
                + "\"error\":\"%s\",\"begin\":%.4f,\"end\":%.4f}",
                client.name, outcome, String.join(",", writes), failure, begin, now()));
        }
    }

    static void commit(KafkaProducer<String, String> producer) {
        try {
            producer.commitTransaction();
        } catch (TimeoutException error) {
            producer.commitTransaction(); // as the documentation of KafkaProducer asks
        }
    }
}
