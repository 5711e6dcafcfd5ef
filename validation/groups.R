# Fit a mixed model by lme4: groups.R FILE FORMULA FAMILY; FILE may be InstEval of lme4. Prints JSON.
arguments <- commandArgs(trailingOnly = TRUE)
suppressMessages(library(lme4))
data <- if (arguments[1] == "InstEval") InstEval else read.csv(arguments[1])
for (name in intersect(names(data), c("g", "h"))) data[[name]] <- factor(data[[name]])
seconds <- system.time({
  if (arguments[3] == "gaussian") {
    fit <- lmer(as.formula(arguments[2]), data)
  } else {
    fit <- glmer(as.formula(arguments[2]), data, family = arguments[3])
  }
})[["elapsed"]]
sds <- as.data.frame(VarCorr(fit))
sds <- sds[is.na(sds$var2), ]
cat(sprintf('{"seconds": %.3f, "sds": [%s], "estimates": [%s], "errors": [%s]}\n', seconds,
            paste(sds$sdcor, collapse = ", "), paste(fixef(fit), collapse = ", "),
            paste(sqrt(diag(as.matrix(vcov(fit)))), collapse = ", ")))
