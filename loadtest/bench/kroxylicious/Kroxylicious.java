import io.kroxylicious.proxy.KafkaProxy;
import io.kroxylicious.proxy.config.ConfigParser;
import io.kroxylicious.proxy.internal.config.Features;
import java.nio.file.Files;
import java.nio.file.Path;

/** Starts Kroxylicious with the config file that is its argument, as its distribution's own main class does. */
public class Kroxylicious {
    public static void main(String[] arguments) throws Exception {
        var parser = new ConfigParser();
        var config = parser.parseConfiguration(Files.readString(Path.of(arguments[0])));
        try (var proxy = new KafkaProxy(parser, config, Features.defaultFeatures())) {
            proxy.startup().block();
        }
    }
}
