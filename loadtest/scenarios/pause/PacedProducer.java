import java.util.Properties;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends numbered records at a steady pace and prints how many failed.
 *  Arguments: bootstrap servers, topic, records, records per second, producer settings as key=value. */
public class PacedProducer {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        for (int index = 4; index < arguments.length; index++) {
            String[] setting = arguments[index].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        int count = Integer.parseInt(arguments[2]);
        double pace = Double.parseDouble(arguments[3]);
        AtomicInteger failed = new AtomicInteger();
        AtomicReference<Exception> first = new AtomicReference<>();
        long begun = System.nanoTime();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            for (int number = 0; number < count; number++) {
                long early = begun + (long) (number / pace * 1e9) - System.nanoTime();
                if (early > 0) {
                    Thread.sleep(early / 1_000_000, (int) (early % 1_000_000));
                }
                byte[] value = new byte[1000];
                System.arraycopy(String.format("%08d", number).getBytes(), 0, value, 0, 8);
                producer.send(new ProducerRecord<>(arguments[1], number % 2, null, value), (metadata, error) -> {
                    if (error != null) {
                        failed.incrementAndGet();
                        first.compareAndSet(null, error);
                    }
                });
            }
            producer.flush();
        }
        System.out.println("failed " + failed + " " + first.get());
    }
}
