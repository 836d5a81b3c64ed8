import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Arguments: bootstrap servers, topic, the authority that signs their certificate or "" for none, then mechanism and JAAS line of
 * each client. Prints the outcome of each client's record.
 */
public class SaslClients {
    public static void main(String[] arguments) throws Exception {
        for (int at = 3; at < arguments.length; at += 2) {
            Properties config = new Properties();
            config.putAll(Map.of(
                "bootstrap.servers", arguments[0],
                "security.protocol", arguments[2].isEmpty() ? "SASL_PLAINTEXT" : "SASL_SSL",
                "sasl.mechanism", arguments[at], "sasl.jaas.config", arguments[at + 1],
                "client.id", "java", "max.block.ms", "20000"));
            if (!arguments[2].isEmpty()) {
                config.putAll(Map.of("ssl.truststore.type", "PEM", "ssl.truststore.location", arguments[2]));
            }
            var bytes = new ByteArraySerializer();
            try (var producer = new KafkaProducer<byte[], byte[]>(config, bytes, bytes)) {
                producer.send(new ProducerRecord<>(arguments[1], new byte[100])).get(30, TimeUnit.SECONDS);
                System.out.println("SENT " + arguments[at]);
            } catch (ExecutionException error) {
                System.out.println("FAILED " + error.getCause().getClass().getSimpleName() + ": " + error.getCause().getMessage());
            }
        }
    }
}
