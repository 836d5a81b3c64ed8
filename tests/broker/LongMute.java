import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Sends two records and reads them. Each request mutes the connection for longer than the request timeout.
 * Arguments: bootstrap servers, topic, record bytes, client-id. Prints "PRODUCED seconds" and "CONSUMED seconds" from the
 * first request to the second record, and "CONNECTIONS producer consumer" opened between the two records.
 */
public class LongMute {
    static final String REQUEST_TIMEOUT_MS = "10000";

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        Map<String, Object> config = Map.of(
            "bootstrap.servers", arguments[0], "client.id", arguments[3], "request.timeout.ms", REQUEST_TIMEOUT_MS,
            "retries", "0", "linger.ms", "0", "delivery.timeout.ms", "60000", "enable.idempotence", "false",
            "reconnect.backoff.ms", "50", "default.api.timeout.ms", "60000");
        Properties producing = new Properties();
        producing.putAll(config);
        long opened;
        var bytes = new ByteArraySerializer();
        try (var producer = new KafkaProducer<byte[], byte[]>(producing, bytes, bytes)) {
            long first = System.nanoTime();
            send(producer, topic, Integer.parseInt(arguments[2]));
            double before = opened(producer.metrics());
            long second = send(producer, topic, Integer.parseInt(arguments[2]));
            System.out.println("PRODUCED " + (second - first) / 1e9);
            opened = Math.round(opened(producer.metrics()) - before);
        }
        Properties consuming = new Properties();
        consuming.putAll(config);
        List.of("retries", "linger.ms", "delivery.timeout.ms", "enable.idempotence").forEach(consuming::remove);
        var values = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(consuming, values, values)) {
            var partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long first = System.nanoTime();
            read(consumer, 0);
            double before = opened(consumer.metrics());
            long second = read(consumer, 1);
            System.out.println("CONSUMED " + (second - first) / 1e9);
            System.out.println("CONNECTIONS " + opened + " " + Math.round(opened(consumer.metrics()) - before));
        }
    }

    static long send(KafkaProducer<byte[], byte[]> producer, String topic, int size) throws Exception {
        producer.send(new ProducerRecord<>(topic, 0, null, new byte[size])).get(60, TimeUnit.SECONDS);
        return System.nanoTime();
    }

    static long read(KafkaConsumer<byte[], byte[]> consumer, long offset) {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (System.nanoTime() < deadline) {
            for (var record : consumer.poll(Duration.ofMillis(100))) {
                if (record.offset() != offset) {
                    throw new IllegalStateException("offset " + record.offset() + " instead of " + offset);
                }
                return System.nanoTime();
            }
        }
        throw new IllegalStateException("no record at offset " + offset);
    }

    static double opened(Map<MetricName, ? extends Metric> metrics) {
        return metrics.entrySet().stream().filter(each -> each.getKey().name().equals("connection-creation-total"))
            .mapToDouble(each -> ((Number) each.getValue().metricValue()).doubleValue()).sum();
    }
}
