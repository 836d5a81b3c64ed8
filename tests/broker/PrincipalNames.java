import java.io.ByteArrayInputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Prints the names that Java and Kafka read from certificates: `java -cp LIBS PrincipalNames.java CERTIFICATES CASES`.
 * Each line of CERTIFICATES is a certificate in base64; each line of CASES has rules and a subject, separated by a tab. Prints
 * one name per line in base64, "-" for none.
 */
public class PrincipalNames {
    public static void main(String[] arguments) throws Exception {
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            byte[] encoded = Base64.getDecoder().decode(line);
            X509Certificate certificate = (X509Certificate) factory.generateCertificate(new ByteArrayInputStream(encoded));
            print(certificate.getSubjectX500Principal().getName());
        }
        for (String line : Files.readAllLines(Path.of(arguments[1]))) {
            List<String> parts = List.of(line.split("\t", 2));
            try {
                print(SslPrincipalMapper.fromRules(parts.get(0)).getName(parts.get(1)));
            } catch (SslPrincipalMapper.NoMatchingRule none) {
                System.out.println("-");
            }
        }
    }

    static void print(String name) {
        System.out.println(Base64.getEncoder().encodeToString(name.getBytes(StandardCharsets.UTF_8)));
    }
}
