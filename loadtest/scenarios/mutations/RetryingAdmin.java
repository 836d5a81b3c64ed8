import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.NewTopic;

/**
 * Creates topics in one call of Kafka's admin client, which tries again by itself where a quota is exceeded (its default), and
 * prints how long that took in ms. Arguments: bootstrap servers, client-id, then name=partitions for each topic.
 */
public class RetryingAdmin {
    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("client.id", arguments[1]);
        config.put("default.api.timeout.ms", "120000");
        List<NewTopic> topics = new ArrayList<>();
        for (int index = 2; index < arguments.length; index++) {
            String[] parts = arguments[index].split("=");
            topics.add(new NewTopic(parts[0], Integer.parseInt(parts[1]), (short) 1));
        }
        try (Admin admin = Admin.create(config)) {
            admin.describeCluster().nodes().get();
            long begun = System.nanoTime();
            admin.createTopics(topics, new CreateTopicsOptions().retryOnQuotaViolation(true)).all().get();
            System.out.println((System.nanoTime() - begun) / 1_000_000);
        }
    }
}
