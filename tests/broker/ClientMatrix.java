import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Runs all checks of the Java client in one JVM: `java -cp LIBS ClientMatrix.java BOOTSTRAP BROKERS [CHECK...]`.
 * Leaves out the checks that are named.
 * Prints a line for each check, "PASS name" or "FAIL name reason", and "BROKER host:port" for each broker in its metadata.
 */
public class ClientMatrix {
    static final int PARTITIONS = 3;
    static final long TIMEOUT_MS = 30_000;
    final String bootstrap;
    final int brokers;
    final List<String> leftOut;
    final Admin admin;

    interface Check {
        void run() throws Exception;
    }

    /** The compared fields of a record, with bytes as text, so that records have equality. */
    record Sent(int partition, String key, String value, long timestamp, String headers) { }

    ClientMatrix(String bootstrap, int brokers, List<String> leftOut) {
        this.bootstrap = bootstrap;
        this.brokers = brokers;
        this.leftOut = leftOut;
        this.admin = Admin.create(config(Map.of()));
    }

    public static void main(String[] arguments) throws Exception {
        List<String> leftOut = List.of(arguments).subList(2, arguments.length);
        new ClientMatrix(arguments[0], Integer.parseInt(arguments[1]), leftOut).run();
    }

    void run() throws Exception {
        for (String acks : List.of("0", "1", "all")) {
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                check("produce-" + acks + "-" + codec, () -> produceAndConsume(
                        Map.of("acks", acks, "compression.type", codec, "enable.idempotence", "false"), 40));
            }
        }
        check("idempotent", () -> produceAndConsume(Map.of("enable.idempotence", "true"), 400));
        for (String protocol : List.of("classic", "consumer")) {
            check("group-" + protocol, () -> group(protocol));
            check("transactions-" + protocol, () -> transactions(protocol));
        }
        check("share-group", this::shareGroup);
        check("admin-topics", this::adminTopics);
        check("admin-groups", this::adminGroups);
        check("admin-cluster", this::adminCluster);
        admin.close();
    }

    void check(String name, Check body) {
        if (leftOut.contains(name)) {
            return;
        }
        try {
            body.run();
            System.out.println("PASS " + name);
        } catch (Throwable failure) {
            System.out.println("FAIL " + name + " " + String.valueOf(failure).replace('\n', ' '));
            failure.printStackTrace();
        }
    }

    static void require(boolean condition, Object what) {
        if (!condition) {
            throw new AssertionError(String.valueOf(what));
        }
    }

    static void requireEqual(Object found, Object expected) {
        require(expected.equals(found), "found " + abbreviate(found) + ", expected " + abbreviate(expected));
    }

    static String abbreviate(Object value) {
        String text = String.valueOf(value);
        return text.length() > 2_000 ? text.substring(0, 2_000) + "..." : text;
    }

    static <T> T get(Future<T> future) throws Exception {
        return future.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
    }

    Map<String, Object> config(Map<String, Object> more) {
        Map<String, Object> all = new HashMap<>(more);
        all.put("bootstrap.servers", bootstrap);
        return all;
    }

    static String name(String kind) {
        return kind + "-" + UUID.randomUUID();
    }

    /** Creates a topic and waits until every leader serves it. Earlier records with acks=0 could be lost. */
    String topic() throws Exception {
        String topic = name("java");
        get(admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) brokers))).all());
        Map<TopicPartition, OffsetSpec> ends = new HashMap<>();
        partitions(topic).forEach(partition -> ends.put(partition, OffsetSpec.latest()));
        eventually(topic + " is served", () -> {
            try {
                return get(admin.listOffsets(ends).all()).size() == PARTITIONS;
            } catch (ExecutionException error) {
                require(error.getCause() instanceof UnknownTopicOrPartitionException, error);
                return false;
            }
        });
        return topic;
    }

    /** Repeats the check until it is true, because brokers learn of changes one after the other. */
    static void eventually(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TIMEOUT_MS * 1_000_000;
        while (!condition.call()) {
            require(System.nanoTime() < deadline, "not in time: " + what);
            Thread.sleep(20);
        }
    }

    static List<TopicPartition> partitions(String topic) {
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            all.add(new TopicPartition(topic, partition));
        }
        return all;
    }

    static List<ProducerRecord<byte[], byte[]>> records(String topic, int count) {
        byte[] noise = new byte[20_000];
        new Random(42).nextBytes(noise);
        List<byte[]> keys = Arrays.asList(null, new byte[0], "ключ".getBytes(StandardCharsets.UTF_8));
        List<byte[]> values = Arrays.asList("value".getBytes(), null, new byte[0], new byte[50_000], noise);
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            List<Header> headers = index % 2 == 0 ? List.of()
                    : List.of(new RecordHeader("h", null), new RecordHeader("h", new byte[] {0, -1}));
            records.add(new ProducerRecord<>(topic, index % PARTITIONS, 1_700_000_000_000L + index,
                    keys.get(index % keys.size()), values.get(index % values.size()), headers));
        }
        return records;
    }

    static String text(byte[] bytes) {
        return bytes == null ? "null" : "[" + new String(bytes, StandardCharsets.ISO_8859_1) + "]";
    }

    static String text(Iterable<Header> headers) {
        StringBuilder all = new StringBuilder();
        headers.forEach(header -> all.append(header.key()).append('=').append(text(header.value())).append(';'));
        return all.toString();
    }

    static Map<Integer, List<Sent>> byPartition(Collection<Sent> records) {
        Map<Integer, List<Sent>> all = new TreeMap<>();
        records.forEach(record -> all.computeIfAbsent(record.partition(), n -> new ArrayList<>()).add(record));
        return all;
    }

    static List<Sent> sent(List<ProducerRecord<byte[], byte[]>> records) {
        return records.stream().map(each -> new Sent(
                each.partition(), text(each.key()), text(each.value()), each.timestamp(), text(each.headers()))).toList();
    }

    static void requireSame(Collection<Sent> arrived, Collection<Sent> sent) {
        require(byPartition(arrived).equals(byPartition(sent)),
                arrived.size() + " records arrived, " + sent.size() + " were sent, or they differ");
    }

    KafkaProducer<byte[], byte[]> producer(Map<String, Object> more) {
        return new KafkaProducer<>(config(more), new ByteArraySerializer(), new ByteArraySerializer());
    }

    KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> more) {
        Map<String, Object> all = config(more);
        all.putIfAbsent("auto.offset.reset", "earliest");
        all.putIfAbsent("enable.auto.commit", "false");
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void send(KafkaProducer<byte[], byte[]> producer, List<ProducerRecord<byte[], byte[]>> records)
            throws Exception {
        List<Future<RecordMetadata>> waiting = new ArrayList<>();
        records.forEach(record -> waiting.add(producer.send(record)));
        producer.flush();
        for (Future<RecordMetadata> future : waiting) {
            get(future);
        }
    }

    static Sent received(ConsumerRecord<byte[], byte[]> each) {
        return new Sent(each.partition(), text(each.key()), text(each.value()), each.timestamp(), text(each.headers()));
    }

    /** Polls the consumers in turn until they have `count` records or the deadline passes, then each once more. */
    @SafeVarargs
    static List<Sent> poll(int count, Consumer<byte[], byte[]>... consumers) {
        List<Sent> arrived = new ArrayList<>();
        long deadline = System.nanoTime() + TIMEOUT_MS * 1_000_000;
        boolean more = true;
        while (more) {
            more = arrived.size() < count && System.nanoTime() < deadline;
            for (Consumer<byte[], byte[]> consumer : consumers) {
                consumer.poll(Duration.ofMillis(100)).forEach(each -> arrived.add(received(each)));
            }
        }
        return arrived;
    }

    List<Sent> readAll(String topic, int count, String isolation) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of("isolation.level", isolation))) {
            consumer.assign(partitions(topic));
            return poll(count, consumer);
        }
    }

    void produceAndConsume(Map<String, Object> settings, int count) throws Exception {
        String topic = topic();
        List<ProducerRecord<byte[], byte[]>> records = records(topic, count);
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            send(producer, records);
        }
        requireSame(readAll(topic, count, "read_uncommitted"), sent(records));
    }

    void group(String protocol) throws Exception {
        String topic = topic();
        Map<String, Object> settings = Map.of("group.id", name("group"), "group.protocol", protocol);
        List<ProducerRecord<byte[], byte[]>> records = records(topic, 60);
        List<ProducerRecord<byte[], byte[]>> later = records(topic, 6);
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            try (KafkaConsumer<byte[], byte[]> first = consumer(settings);
                    KafkaConsumer<byte[], byte[]> second = consumer(settings)) {
                first.subscribe(List.of(topic));
                second.subscribe(List.of(topic));
                long deadline = System.nanoTime() + TIMEOUT_MS * 1_000_000;
                while (first.assignment().isEmpty() || second.assignment().isEmpty()
                        || first.assignment().size() + second.assignment().size() != PARTITIONS) {
                    require(System.nanoTime() < deadline, first.assignment() + " and " + second.assignment());
                    requireEqual(poll(0, first, second), List.of());
                }
                send(producer, records);
                requireSame(poll(records.size(), first, second), sent(records));
                first.commitSync();
                second.commitSync();
            }
            send(producer, later);
        }
        try (KafkaConsumer<byte[], byte[]> resumed = consumer(settings)) {
            resumed.subscribe(List.of(topic));
            requireSame(poll(later.size(), resumed), sent(later));
        }
    }

    void transactions(String protocol) throws Exception {
        String source = topic();
        String sink = topic();
        String group = name("group");
        List<ProducerRecord<byte[], byte[]>> records = records(source, 30);
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            send(producer, records);
        }
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of("transactional.id", name("transaction")));
                KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of(
                        "group.id", group, "group.protocol", protocol, "isolation.level", "read_committed"))) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            requireSame(poll(records.size(), consumer), sent(records));
            producer.beginTransaction();
            send(producer, records(sink, 7));
            producer.abortTransaction();

            producer.beginTransaction();
            send(producer, records(sink, 30));
            partitions(source).forEach(each -> offsets.put(each, new OffsetAndMetadata(consumer.position(each))));
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            producer.commitTransaction();
            Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(new HashSet<>(partitions(source)));
            offsets.forEach((each, offset) -> requireEqual(committed.get(each).offset(), offset.offset()));
        }
        List<Sent> copied = sent(records(sink, 30));
        requireSame(readAll(sink, 30, "read_committed"), copied);
        List<Sent> everything = new ArrayList<>(sent(records(sink, 7)));
        everything.addAll(copied);
        requireSame(readAll(sink, 37, "read_uncommitted"), everything);
    }

    void shareGroup() throws Exception {
        String topic = topic();
        String group = name("share");
        get(admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), List.of(
                new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET))))
                .all());
        List<ProducerRecord<byte[], byte[]>> records = records(topic, 60);
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            send(producer, records);
        }
        Map<String, Object> settings = config(Map.of("group.id", group, "share.acknowledgement.mode", "explicit"));
        Set<Sent> accepted = new HashSet<>();
        Set<Sent> released = new HashSet<>();
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            long deadline = System.nanoTime() + TIMEOUT_MS * 1_000_000;
            while (accepted.size() < records.size() && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    // Every third record is released once and must arrive again.
                    boolean again = record.offset() % 3 == 0 && released.add(received(record));
                    consumer.acknowledge(record, again ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                    if (!again) {
                        require(accepted.add(received(record)), "delivered twice: offset " + record.offset());
                    }
                }
                Map<TopicIdPartition, Optional<KafkaException>> failures = consumer.commitSync();
                failures.values().forEach(failure -> require(failure.isEmpty(), failure));
            }
        }
        requireEqual(accepted, new HashSet<>(sent(records)));
        require(!released.isEmpty(), "no record was released");
        requireEqual(get(admin.describeShareGroups(List.of(group)).describedGroups().get(group)).groupState(),
                GroupState.EMPTY);
    }

    void adminTopics() throws Exception {
        String topic = topic();
        try {
            get(admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all());
            throw new AssertionError("created twice");
        } catch (ExecutionException expected) {
            require(expected.getCause() instanceof TopicExistsException, expected);
        }
        get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(PARTITIONS + 1))).all());
        eventually("a partition more", () -> get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic)
                .partitions().size() == PARTITIONS + 1);
        TopicDescription described = get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
        described.partitions().forEach(each -> requireEqual(each.replicas().size(), brokers));
        described.partitions().forEach(each -> each.replicas().forEach(node -> printBroker(node)));

        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        get(admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                new ConfigEntry("retention.ms", "3600000"), AlterConfigOp.OpType.SET)))).all());
        eventually("retention.ms is described", () -> get(admin.describeConfigs(List.of(resource)).all()).get(resource)
                .get("retention.ms").value().equals("3600000"));
        try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
            send(producer, records(topic, 30));
        }
        TopicPartition first = new TopicPartition(topic, 0);
        get(admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(4))).all());
        requireEqual(get(admin.listOffsets(Map.of(first, OffsetSpec.earliest())).partitionResult(first)).offset(), 4L);
        require(get(admin.describeProducers(List.of(first)).all()).containsKey(first), "describeProducers");
        get(admin.listPartitionReassignments(Set.of(first)).reassignments());
        get(admin.deleteTopics(List.of(topic)).all());
        eventually(topic + " is no longer listed", () -> !get(admin.listTopics().names()).contains(topic));
    }

    void adminGroups() throws Exception {
        String topic = topic();
        String group = name("group");
        TopicPartition first = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of("group.id", group))) {
            consumer.subscribe(List.of(topic));
            long deadline = System.nanoTime() + TIMEOUT_MS * 1_000_000;
            while (consumer.assignment().isEmpty()) {
                require(System.nanoTime() < deadline, "no assignment");
                requireEqual(poll(0, consumer), List.of());
            }
            ConsumerGroupDescription described =
                    get(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
            requireEqual(described.members().size(), 1);
            printBroker(described.coordinator());
            try {
                get(admin.deleteConsumerGroups(List.of(group)).all());
                throw new AssertionError("deleted a group with a member");
            } catch (ExecutionException expected) {
                require(expected.getCause() instanceof GroupNotEmptyException, expected);
            }
        }
        // Two offsets: older brokers drop a group without members when its last offset is deleted.
        Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(
                first, new OffsetAndMetadata(5, "why"), new TopicPartition(topic, 1), new OffsetAndMetadata(6, "why"));
        get(admin.alterConsumerGroupOffsets(group, offsets).all());
        requireEqual(get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()), offsets);
        require(get(admin.listGroups().all()).stream().anyMatch(each -> each.groupId().equals(group)), "not listed");
        get(admin.deleteConsumerGroupOffsets(group, Set.of(first)).all());
        get(admin.deleteConsumerGroups(List.of(group)).all());
        require(get(admin.listGroups().all()).stream().noneMatch(each -> each.groupId().equals(group)), "still listed");
    }

    void adminCluster() throws Exception {
        Collection<Node> nodes = get(admin.describeCluster().nodes());
        requireEqual(nodes.size(), brokers);
        nodes.forEach(ClientMatrix::printBroker);
        printBroker(get(admin.describeCluster().controller()));
        List<Integer> ids = nodes.stream().map(Node::id).toList();
        requireEqual(get(admin.describeLogDirs(ids).allDescriptions()).size(), brokers);
        require(get(admin.describeFeatures().featureMetadata()).finalizedFeatures().containsKey("metadata.version"),
                "no metadata.version");
        requireEqual(get(admin.describeMetadataQuorum().quorumInfo()).voters().size(), brokers);
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, String.valueOf(ids.get(0)));
        requireEqual(get(admin.describeConfigs(List.of(broker)).all()).get(broker).get("node.id").value(),
                String.valueOf(ids.get(0)));
        get(admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(
                "matrix", new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), "secret"))).all());
        eventually("the new user is described",
                () -> get(admin.describeUserScramCredentials().users()).contains("matrix"));
        require(get(admin.listTransactions().all()) != null, "listTransactions");
    }

    static void printBroker(Node node) {
        System.out.println("BROKER " + node.host() + ":" + node.port());
    }
}
