import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of one consumer group that read and commit until the process is killed. Prints a line for each rebalance.
 * Arguments: bootstrap servers, topic, group and client-id, protocol (classic or consumer), members.
 */
public class GroupMember {
    public static void main(String[] arguments) {
        for (int number = 0; number < Integer.parseInt(arguments[4]); number++) {
            new Thread(() -> consume(arguments)).start();
        }
    }

    static void consume(String[] arguments) {
        Properties config = new Properties();
        config.putAll(Map.of(
            "bootstrap.servers", arguments[0], "group.id", arguments[2], "client.id", arguments[2],
            "group.protocol", arguments[3], "auto.offset.reset", "earliest"));
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(config, bytes, bytes)) {
            consumer.subscribe(List.of(arguments[1]), new Rebalances());
            while (true) {
                int records = consumer.poll(Duration.ofMillis(500)).count();
                if (records > 0) {
                    print("records " + records);
                }
            }
        }
    }

    static synchronized void print(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static class Rebalances implements ConsumerRebalanceListener {
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            report("assigned", partitions);
        }

        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            report("revoked", partitions);
        }

        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            report("lost", partitions);
        }

        static void report(String event, Collection<TopicPartition> partitions) {
            if (!partitions.isEmpty()) {
                print(event);
            }
        }
    }
}
